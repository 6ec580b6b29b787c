"""The lists that an absence and a ledger declare, and the rules by which they are minted. One rule set for both.

An item is one piece of ground: ``{"what": ..., "why": ...}``, or only its ``what`` as text. A mint refuses what it
cannot say, where it is called: every refusal starts ``refused: `` and names the field and the index, because
within a tool it becomes the error that the model reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from coatcheck.errors import DeclarationError
from coatcheck.results.shapes import describe, is_array, is_text, quote

__all__ = ["Items", "mint_items", "mint_text", "refuse_unknown"]

Items: TypeAlias = Sequence[str | Mapping[str, str]]

_KEYS = ("what", "why")


def mint_items(field: str, declared: object, *, why: bool = False) -> list[dict[str, str]]:
    """The items of one list as they go on the wire: trimmed, in order, each with ``what`` and perhaps ``why``.

    Args:
        field: the list's name, as the author spells it.
        declared: what the author gave: a list or a tuple of texts and mappings.
        why: whether every item must say why, so that bare text is not enough.

    Returns:
        Fresh dicts; the author's own objects are not kept.

    Raises:
        DeclarationError: at the first fault.
    """
    if not is_array(declared):
        raise DeclarationError(f"refused: {field} must be a list, but {describe(declared)}")
    return [_mint_item(f"{field}[{index}]", item, why=why) for index, item in enumerate(declared)]


def refuse_unknown(subject: str, given: Iterable[object], known: tuple[str, ...]) -> None:
    """Refuse the first name that is not known, and say which spelling was meant or which there are.

    Args:
        subject: what carries the names, for the sentence.
        given: the names as the author spelled them.
        known: the names that there are.

    Raises:
        DeclarationError: when a name is not known. ``notChecked`` is answered with ``not_checked``.
    """
    for name in given:
        if name not in known:
            meant = next((word for word in known if _folded(word) == _folded(name)), None)
            hint = f"write {meant}" if meant else f"there are {', '.join(known)}"
            raise DeclarationError(f"refused: {subject} has no {quote(str(name))}; {hint}")


def mint_text(place: str, wanted: str, found: object) -> str:
    """One text as it goes on the wire: trimmed, and not blank.

    Args:
        place: the field, with its index where it has one.
        wanted: what should stand there, for the sentence.
        found: what the author gave; ``msgspec.UNSET`` for nothing.

    Raises:
        DeclarationError: when it is not text, or blank.
    """
    text = found.strip() if is_text(found) else ""
    if not text:
        raise DeclarationError(f"refused: {place} must be {wanted}, but {describe(found)}")
    return text


def _mint_item(place: str, item: object, *, why: bool) -> dict[str, str]:
    reason: object = msgspec.UNSET
    if isinstance(item, Mapping):
        refuse_unknown(place, item, _KEYS)
        what = mint_text(f"{place}.what", "text that is not blank", item.get("what", msgspec.UNSET))
        reason = item.get("why", msgspec.UNSET)
    else:
        what = mint_text(place, "text that is not blank, or a mapping with what and why", item)
    if reason is msgspec.UNSET and not why:
        return {"what": what}
    wanted = "text that says what keeps it out of reach" if why else "text that is not blank, or left out"
    return {"what": what, "why": mint_text(f"{place}.why ({quote(what)})", wanted, reason)}


def _folded(name: object) -> str:
    return str(name).replace("_", "").replace("-", "").lower()
