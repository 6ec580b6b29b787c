"""What a number in a setting may be: the one check behind every dial.

A dial that cannot be honoured is refused where it is built (law: `design.md` section 3, parting 18),
so a wrong number never waits for the first call that meets it.
"""

from __future__ import annotations

from datetime import timedelta

from coatcheck.errors import ConfigurationError

__all__ = ["check_duration", "check_whole"]

_LONGEST = timedelta(days=365_000).total_seconds()


def check_whole(setting: str, value: object, *, least: int = 1) -> int:
    """Return ``value`` if it is a whole number of at least ``least``; refuse anything else.

    Booleans are refused although Python counts them as integers: ``max_chars=True`` is a slip.

    Raises:
        ConfigurationError: naming ``setting``, what was given and what would be right.
    """
    if type(value) is not int:
        hint = ": write it as an int" if isinstance(value, float) and value.is_integer() else ""
        raise ConfigurationError(f"{setting} must be a whole number of at least {least}, not {value!r:.80}{hint}")
    if value < least:
        shown = str(value) if value.bit_length() <= 64 else "that"
        raise ConfigurationError(f"{setting} must be at least {least}, not {shown}")
    return value


def check_duration(setting: str, value: object) -> float:
    """Return ``value`` in seconds if it is a positive duration of at most a thousand years; refuse anything else.

    Args:
        setting: its name, for the text of the refusal.
        value: a number of seconds, or a `timedelta`.

    Raises:
        ConfigurationError: naming ``setting``, what was given and what would be right.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= _LONGEST:
        shown = f"{value!r:.80}" if not isinstance(value, int) or value.bit_length() <= 64 else "that"
        raise ConfigurationError(
            f"{setting} must be a positive number of seconds or a timedelta, at most a thousand years, not {shown}"
        )
    return float(seconds)
