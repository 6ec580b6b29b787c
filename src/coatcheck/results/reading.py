"""The one funnel: what does a returned value declare about the ground that it covers, and what is the model served?

Asked in this order, of the value itself and of nothing within it but for the last line:

* an absence is one fact, and the status ``absent``;
* a ledger is one fact and no status of its own;
* the absence DIRECTLY inside a ledger is a second fact, after the ledger's, and sets the status.

A fact is the record: it keeps what the model is not served, and has no part that a mint would have refused. What the
model is served is `coatcheck.results.served`. A value that declares nothing costs two look-ups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec

from coatcheck.errors import DeclarationError, RenderingError
from coatcheck.results.absence import SuggestedTool, judge_sentence, judge_suggestion, read_absence
from coatcheck.results.coverage import read_coverage
from coatcheck.results.envelope import Encoded, decode_envelope, read_envelope
from coatcheck.results.items import read_items
from coatcheck.results.period import Period, PeriodVerdict, judge_period, least_held
from coatcheck.results.provenance import Provenance, judge_provenance
from coatcheck.results.served import serve, serve_encoded, with_content
from coatcheck.results.shapes import is_object, is_text, recogniser
from coatcheck.results.wire import ABSENCE_MARKER, COVERAGE_MARKER, LISTS, open_wire

__all__ = [
    "Coverage",
    "Declared",
    "Reading",
    "content_of",
    "coverage_of",
    "may_declare",
    "may_declare_encoded",
    "read_and_check",
    "read_or_refuse",
    "read_result",
    "read_result_encoded",
    "served_of",
]


# Unbound, so that a subclass of dict is read as the encoder reads it, and runs no code of its own.
_get: Callable[..., Any] = dict.get

MAX_ITEMS = 200
"""How many items of a list a fact keeps: a record is bounded in its rows, and so is each of them."""

_MAX_FAULTS = 20
_T = TypeVar("_T")

_MARKERS = (f'"{ABSENCE_MARKER}"'.encode(), f'"{COVERAGE_MARKER}"'.encode())


class Coverage(msgspec.Struct, frozen=True):
    """The ground of an absence or a ledger, in three lists of items, each as found.

    Attributes:
        checked: the ground that is covered.
        not_checked: the ground that was left out.
        cannot_cover: the ground that is out of reach.
    """

    checked: tuple[Any, ...] = ()
    not_checked: tuple[Any, ...] = ()
    cannot_cover: tuple[Any, ...] = ()


class Declared(msgspec.Struct, frozen=True):
    """One fact about coverage that a result declared: a row of the record.

    A fact that was minted elsewhere is read, never repaired: a list that is none is empty here, and an item may be
    anything that JSON carries, though ``absent()`` and ``coverage()`` mint only objects with a ``what``. What no mint
    would have let pass beside the lists is left out. A list of more than `MAX_ITEMS` keeps the first of them, and one
    item more, ``{"what": "800 more, which were left off the record", "left_out": 800}``; the model is served all of it.

    Attributes:
        kind: ``absence`` or ``ledger``.
        looked_for: what an absence looked for, in the tool's words; ``None`` where it says no text, and on a ledger.
        checked: the ground that is covered, as found.
        not_checked: the ground that was left out, as found.
        cannot_cover: the ground that is out of reach, as found.
        try_instead: an absence's sentence about what to ask instead.
        try_instead_tool: the tool that an absence points at.
        provenance: where and when an absence looked.
        period: which time was asked about, and which time the data covers.
        verdict: the library's word on the period.
        tool, call_id, turn: the call that declared it, where whoever keeps the record has filled them in.
    """

    kind: Literal["absence", "ledger"]
    looked_for: str | None
    checked: tuple[Any, ...]
    not_checked: tuple[Any, ...]
    cannot_cover: tuple[Any, ...]
    try_instead: str | None = None
    try_instead_tool: SuggestedTool | None = None
    provenance: Provenance | None = None
    period: Period | None = None
    verdict: PeriodVerdict | None = None
    tool: str | None = None
    call_id: str | None = None
    turn: int | None = None


class Reading(msgspec.Struct, frozen=True):
    """What one result declared.

    Attributes:
        declared: its facts, the outer one first; never empty.
        status: ``absent`` when an absence is among them, unless the tool spelled a status itself.
        served: what the model is served: the very value that was read where nothing changes, else a copy of the same
            kind (of wire bytes, wire bytes).
        faults: a sentence for each part that was left off the record, at most twenty, for the author's log; none quotes
            a value.
    """

    declared: tuple[Declared, ...]
    status: Literal["absent"] | None
    served: Any = None
    faults: tuple[str, ...] = ()

    @property
    def verdict(self) -> PeriodVerdict | None:
        """The verdict on all periods of the result together: that of the least held."""
        return least_held(fact.verdict for fact in self.declared)


_SILENT = frozenset({str, list, int, float, bool, type(None)})


def may_declare(value: Any) -> bool:
    """Whether a value can be an envelope, an absence or a ledger at all: the one cheap look at every result.

    Args:
        value: whatever a tool returned.

    Returns:
        False where neither ``read_envelope`` nor ``read_result`` would find anything, nor ``explain_near_miss``.
    """
    kind = type(value)
    if kind is dict:
        return "content" in value or ABSENCE_MARKER in value or COVERAGE_MARKER in value
    return kind not in _SILENT


def read_result(value: Any) -> Reading | None:
    """Read what a value declares, by the order of this module.

    Args:
        value: whatever a tool returned, after any envelope was unwrapped; an `Encoded` is opened. It is not changed.

    Returns:
        The reading, or ``None`` when the value declares nothing that can be read. Never raises.
    """
    try:
        return read_or_refuse(value)
    except RenderingError:
        return None


def read_or_refuse(value: Any) -> Reading | None:
    """As `read_result`, for whoever serves the value: what declares something that cannot be read is not served.

    Args:
        value: whatever a tool returned, after any envelope was unwrapped; an `Encoded` is opened. It is not changed.

    Returns:
        The reading, or ``None`` when the value declares nothing.

    Raises:
        RenderingError: of an `Encoded` alone, when it is nested too deeply to read what it declares.
    """
    cls = type(value)
    if not (cls is dict or issubclass(cls, dict)):
        return _read_encoded(value) if cls is Encoded else None
    try:
        if _get(value, ABSENCE_MARKER) is None and _get(value, COVERAGE_MARKER) is None:
            return None
        facts, faults = _read(value)
        return _reading(facts, faults, serve(value)) if facts else None
    except Exception:  # noqa: BLE001 - what raises when it is looked at is not of our shape
        return None


def read_result_encoded(raw: bytes) -> Reading | None:
    """Read what wire bytes declare, without decoding what a ledger bounds.

    The law: the answer is that of ``read_result`` on the decoded value, keys spelled with escapes included, but for
    ``served``, which is wire bytes too. What it costs is told in `coatcheck.results.wire.open_wire`.

    Args:
        raw: the bytes of one JSON value.

    Returns:
        The reading, or ``None`` when the value declares nothing, is not JSON, or not UTF-8. Never raises.
    """
    try:
        return read_and_check(raw)[0]
    except RenderingError:
        return None


def read_and_check(raw: bytes) -> tuple[Reading | None, bool]:
    """As ``read_result_encoded``; and whether that has found the syntax of all of ``raw`` to be right.

    It has to read an object to its end, so that nobody need check its syntax once more.
    """
    opened, checked = open_wire(raw)
    if opened is None:
        return None, checked
    try:
        facts, faults = _read(opened)
        return (_reading(facts, faults, serve_encoded(opened, raw)) if facts else None), checked
    except RecursionError:
        raise RenderingError("$", "JSON that is nested too deeply to read what it declares") from None


def served_of(value: Any) -> Any:
    """What the model is served of a value that has no authority: of an envelope, which is data then, the content too.

    Args:
        value: anything that is to be rendered. It is not changed.

    Returns:
        The very same object where there is nothing to change, else a copy of the same kind.

    Raises:
        RenderingError: as `read_or_refuse`.
    """
    content = content_of(value)
    if content is msgspec.UNSET:
        reading = read_or_refuse(value)
        return value if reading is None else reading.served
    reading = read_or_refuse(content)
    if reading is None or (reading.served is content and type(value) is not Encoded):
        return value
    return with_content(value, reading.served)  # of wire bytes without what a key that is given twice leaves behind


def content_of(value: Any) -> Any:
    """The content of an envelope, that of wire bytes as an `Encoded`; ``msgspec.UNSET`` where it is no envelope."""
    if type(value) is not Encoded:
        envelope = read_envelope(value)
        return msgspec.UNSET if envelope is None else envelope.content
    envelope = decode_envelope(value.raw) if value.media_type == "application/json" else None
    return msgspec.UNSET if envelope is None else Encoded(bytes(envelope.content))


def may_declare_encoded(raw: bytes) -> bool:
    """Whether the bytes of one JSON value may declare anything: they hold a marker, or an escape that may spell one.

    Two searches from the end cost half of what reading an object does, so this is for bytes whose syntax is known.
    """
    return raw[:1] != b"[" and (b"\\" in raw or any(raw.rfind(marker) >= 0 for marker in _MARKERS))


@recogniser
def coverage_of(value: Any) -> Coverage | None:
    """The ground of an absence, or of a ledger and nothing within it.

    Args:
        value: an absence, a ledger, or anything else; an `Encoded` is opened. It is not changed.

    Returns:
        The three lists, as they go on the record; ``None`` for what declares nothing. Never raises.
    """
    holder = read_absence(value)
    if holder is None:
        ledger = read_coverage(value)
        holder = None if ledger is None else ledger[COVERAGE_MARKER]
    return None if holder is None else Coverage(*_lists(holder, []))


def _read_encoded(value: Encoded) -> Reading | None:
    reading = read_and_check(value.raw)[0] if value.media_type == "application/json" else None
    if reading is None:
        return None
    served = value if reading.served is value.raw else msgspec.structs.replace(value, raw=reading.served)
    return msgspec.structs.replace(reading, served=served)


def _read(value: Any) -> tuple[tuple[Declared, ...], list[str]]:
    """The facts of an object, and what was left out of them."""
    faults: list[str] = []
    if read_absence(value) is not None:
        return (_absence(value, faults),), faults
    if read_coverage(value) is None:
        return (), faults
    bounds, inner = _get(value, COVERAGE_MARKER), _get(value, "result")
    period, verdict = _kept(judge_period, _get(bounds, "period"), faults) or (None, None)
    ledger = Declared("ledger", None, *_lists(bounds, faults, MAX_ITEMS), period=period, verdict=verdict)
    if is_object(inner) and read_absence(inner) is not None:
        return (ledger, _absence(inner, faults)), faults
    return (ledger,), faults


def _reading(facts: tuple[Declared, ...], faults: list[str], served: Any) -> Reading:
    return Reading(facts, "absent" if facts[-1].kind == "absence" else None, served, tuple(faults[:_MAX_FAULTS]))


def _absence(value: Any, faults: list[str]) -> Declared:
    looked_for = _get(value, "looked_for")
    period, verdict = _kept(judge_period, _get(value, "period"), faults) or (None, None)
    return Declared(
        "absence",
        str.__str__(looked_for) if is_text(looked_for) else None,
        *_lists(value, faults, MAX_ITEMS),
        try_instead=_kept(judge_sentence, _get(value, "try_instead"), faults),
        try_instead_tool=_kept(judge_suggestion, _get(value, "try_instead_tool"), faults),
        provenance=_kept(judge_provenance, _get(value, "provenance"), faults),
        period=period,
        verdict=verdict,
    )


def _lists(
    holder: Any, faults: list[str], most: int | None = None
) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    checked, not_checked, cannot_cover = LISTS
    return (
        read_items(checked, _get(holder, checked), faults, kind=False, most=most),
        read_items(not_checked, _get(holder, not_checked), faults, most=most),
        read_items(cannot_cover, _get(holder, cannot_cover), faults, most=most),
    )


def _kept(judge: Callable[[Any], _T | None], found: object, faults: list[str]) -> _T | None:
    """A part as a mint would let it pass; ``None`` where there is none, or where it was left off the record."""
    try:
        return None if found is None else judge(found)
    except DeclarationError as error:
        faults.append(f"{str(error).removeprefix('refused: ')}; it was left off the record")
        return None
