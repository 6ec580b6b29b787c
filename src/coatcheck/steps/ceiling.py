"""Ceiling: the tool AUTHOR's limit on their own result. It refuses, and teaches how to ask for less.

Law (`reference/behaviour.md` section 4): only strictly over is over; the refused payload enters no channel
and is never placed; the delivered status is ``invalid``, effects and declared coverage survive; it is not
an error. A stream that is refused is not read any further, so its size is what was read by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from coatcheck.dispatch import Dispatch
from coatcheck.errors import ConfigurationError
from coatcheck.events import ResultRefused
from coatcheck.flow import flow_of
from coatcheck.outcome import Inline, Outcome, TooLarge, carried, size_of
from coatcheck.settings import check_whole
from coatcheck.steps.step import Step

__all__ = ["Ceiling", "CeilingStep", "refuse"]


class Ceiling(msgspec.Struct, frozen=True):
    """The largest result that a tool's author is willing to return.

    Args:
        max_chars: in characters (Unicode code points) of the rendered result, bytes for binary.
        narrow_by: names of the arguments by which the model can ask for less.

    Raises:
        ConfigurationError: for a limit that is not a positive whole number, or names that are blank.
    """

    max_chars: int
    narrow_by: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_whole("Ceiling.max_chars", self.max_chars)
        names = self.narrow_by
        if not isinstance(names, (list, tuple)):
            raise ConfigurationError(f"Ceiling.narrow_by must be a list of argument names, not {names!r:.80}")
        if not names and names != ():
            raise ConfigurationError("Ceiling.narrow_by is an empty list; name at least one argument, or leave it out")
        for index, name in enumerate(names):
            if not isinstance(name, str) or not name.strip():
                raise ConfigurationError(
                    f"Ceiling.narrow_by[{index}] must be the name of an argument, not {name!r:.80}"
                )
        msgspec.structs.force_setattr(self, "narrow_by", tuple(names))


def refuse(tool: str, size: int, ceiling: Ceiling, *, more: bool = False) -> str | None:
    """Decide: ``None`` where a result of ``size`` fits, else the refusal that the model reads.

    Args:
        tool: whose result it is.
        size: in characters. ceiling: the limit.
        more: there may be more of it than ``size``: a stream is not read any further once it is over.
    """
    if size <= ceiling.max_chars:
        return None
    returned = f"more than {ceiling.max_chars}" if more else size
    if ceiling.narrow_by:
        names = ", ".join(ceiling.narrow_by)
        advice = f"Call {tool} again and ask for less: narrow it by {names}."
    else:
        advice = f"Call {tool} again and ask for less."
    return (
        f"{tool} returned {returned} characters, over the ceiling of {ceiling.max_chars} that its author set. "
        f"The result was refused: none of it was returned or stored. {advice}"
    )


class CeilingStep(Step):
    """The middleware directly around the tool: measures the value, and drops it where it is over."""

    def __init__(self, ceilings: Mapping[str, Ceiling]) -> None:
        self._ceilings = ceilings
        self.least: int = min((ceiling.max_chars for ceiling in ceilings.values()), default=0)

    def over(self, call: Dispatch, outcome: Outcome, size: int) -> bool:
        """Whether this step has anything to do."""
        ceiling = self._ceilings.get(outcome.tool)
        return ceiling is not None and size > ceiling.max_chars and isinstance(outcome, Inline)

    async def act(self, call: Dispatch, outcome: Outcome) -> Outcome:
        """Drop the value, and teach. A stream is counted while it flows, and dropped when it is over."""
        ceiling = self._ceilings[outcome.tool]
        flow = flow_of(outcome)
        if flow is None:
            return _dropped(call, outcome, ceiling, size_of(outcome))
        if flow.gauge.size > ceiling.max_chars:
            await flow.aclose()
            return _dropped(call, outcome, ceiling, flow.gauge.size, more=True)
        flow.limit(ceiling.max_chars, lambda: _dropped(call, outcome, ceiling, flow.gauge.size, more=True))
        return outcome


def _dropped(call: Dispatch, outcome: Outcome, ceiling: Ceiling, size: int, *, more: bool = False) -> TooLarge:
    if call.emit is not None:
        call.emit(
            ResultRefused(
                tool=outcome.tool,
                call_id=outcome.call_id,
                turn=call.turn,
                size=size,
                max_chars=ceiling.max_chars,
                narrow_by=tuple(ceiling.narrow_by),
                declared_status=outcome.status,
            )
        )
    refusal = refuse(outcome.tool, size, ceiling, more=more)
    return carried(outcome, TooLarge, text=refusal, status="invalid", size=size, max_chars=ceiling.max_chars)
