"""The block that travels with an answer: what the tools of a run said about the ground that it stands on.

    <the answer>

    ---
    What this answer covers

    Checked:
    - the live orders table

    Not checked:
    - the archive — it holds orders older than a year

    Period: asked 2031-01-02T00:00:00Z to 2031-01-03T00:00:00Z, held unknown (unknown)

Sections and items stand in the order of the run, each pair of a ``what`` and a ``why`` once in its section, at most
twelve in one and then the number of those that are left over. Whatever a tool said stays on one line of its own, so
that none of it can look like a part of the answer; marks that are not seen, or that reorder a line, are dropped.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from coatcheck.results.items import LEFT_OUT
from coatcheck.results.notes import ANSWER_HEADING
from coatcheck.results.period import Period
from coatcheck.results.reading import Declared
from coatcheck.results.shapes import clip, is_object, is_text, legible, spoken

__all__ = ["compose_answer"]

MAX_ITEMS = 12
MAX_ITEM_CHARS = 300

_SECTIONS = (("Checked", "checked"), ("Not checked", "not_checked"), ("Cannot be covered", "cannot_cover"))


def compose_answer(text: str, declared: Iterable[Declared]) -> str:
    """An answer with what the tools of its run declared about their ground.

    Args:
        text: the answer, as the model wrote it.
        declared: every fact of the run, in its order: `Session.declared_coverage`, or those of its outcomes.

    Returns:
        The answer, trimmed at its end, a rule, and the block; the block alone where the answer is blank; the very same
        text where nothing was declared.
    """
    facts = tuple(declared)
    parts = []
    for title, name in _SECTIONS:
        items = [item for fact in facts for item in getattr(fact, name)]
        left_out = sum(map(_left_out, items))
        if lines := _lines(item for item in items if not _left_out(item)):
            parts.append("\n".join([f"{title}:", *_folded(lines, left_out)]))
    periods = dict.fromkeys(_period(fact.period, fact.verdict) for fact in facts if fact.period is not None)
    if periods:
        parts.append("\n".join(_folded(list(periods))))
    if not parts:
        return text
    block = "\n\n".join([ANSWER_HEADING, *parts])
    answer = text.rstrip()
    return f"{answer}\n\n---\n{block}" if answer else block


def _lines(items: Iterable[object]) -> list[str]:
    """One line for each item that says something, each pair of what and why once."""
    pairs: dict[tuple[str, str], None] = {}
    for item in items:
        what = _line(item.get("what") if is_object(item) else item)
        if what:
            pairs[what, _line(item.get("why")) if is_object(item) else ""] = None
    return [f"- {what} — {why}" if why else f"- {what}" for what, why in pairs]


def _folded(lines: list[str], left_out: int = 0) -> list[str]:
    shown = lines[:MAX_ITEMS]
    more = len(lines) - len(shown) + left_out
    return [*shown, f"- and {more} more"] if more else shown


def _left_out(item: object) -> int:
    """How many items the record says it left out, where this is the item that says so."""
    count = item.get(LEFT_OUT) if is_object(item) else None
    return count if type(count) is int and count > 0 else 0


def _line(said: object) -> str:
    if not (is_text(said) and spoken(said)):
        return ""
    return clip("".join(mark for mark in legible(said) if not _is_hidden(mark)), MAX_ITEM_CHARS)


def _is_hidden(mark: str) -> bool:
    """Whether a character is a format character, or a control that is no white space."""
    return not mark.isprintable() and not mark.isspace() and unicodedata.category(mark) in ("Cf", "Cc")


def _period(period: Period, verdict: str | None) -> str:
    held = "unknown" if isinstance(period.held, str) else f"{period.held.from_} to {period.held.to}"
    asked = f"{period.queried.from_} to {period.queried.to}"
    read = "" if period.read_at is None else f", read at {period.read_at}"
    return _line(f"Period: asked {asked}, held {held}{read} ({verdict})")
