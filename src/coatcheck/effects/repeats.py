"""The note on a call that was made before, with the same arguments, and gave the same text to read.

A model that asks the same again is told so once, on exactly the second landing (`reference/behaviour.md` 10). Nothing
is blocked. Two calls are the same only where the tool, the arguments (keys sorted at every depth, lists in order) and
the whole text are equal: all of them are compared, so that no hash decides. What is too long to be kept is compared by
its SHA-256. Arguments that are not plain JSON are the same as no others.

A session remembers at least the last `WINDOW` landings that differ from each other, and at most twice as many. Every
call pays for this, so that it is one look into a dict: landings are forgotten a generation at a time, and a digest is
only made of what is long, and for the session's bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import isfinite
from typing import Annotated, Any, TypeAlias

import msgspec

from coatcheck.call import read_arguments
from coatcheck.results.shapes import quote

__all__ = ["WINDOW", "Landing", "RepeatedCalls", "note_on_repeat"]

WINDOW = 16
"""How many different landings are remembered at least; what was new longest ago is forgotten first."""

_KEPT = 2_048  # characters of a text, bytes of arguments; what is longer is kept as its digest
_NO_ARGUMENTS = b"{}"
_NONE: tuple[Any, ...] = ()
_ATOMS = frozenset({str, int, bool, type(None)})
_encode = msgspec.json.Encoder(order="sorted").encode


class Landing(msgspec.Struct, frozen=True, array_like=True):
    """One remembered landing, as the session's bytes carry it.

    Attributes:
        digest: of the tool, the arguments and the text, 20 bytes.
        chars: the length of the text, as far as texts are kept.
        times: how often it landed.
    """

    digest: bytes
    chars: Annotated[int, msgspec.Meta(ge=0)]
    times: Annotated[int, msgspec.Meta(ge=1)]


_Key: TypeAlias = tuple[str, bytes, int]
"""The tool, the fingerprint of the arguments, and the length of the text: a text is compared, and never hashed."""

_Cell: TypeAlias = list[Any]
"""A text, or the digest of a long one, and how often it landed; in a cell, so that to count on is one look."""


class RepeatedCalls:
    """What one session remembers of its landings.

    Args:
        landings: what `landings` gave, maybe on another replica.
    """

    __slots__ = ("_count", "_old", "_restored", "_young")

    def __init__(self, landings: Sequence[Landing] = ()) -> None:
        self._young: dict[_Key, list[_Cell]] = {}
        self._old: dict[_Key, list[_Cell]] = {}
        self._count = 0  # of the young ones
        self._restored: dict[int, dict[bytes, Landing]] = {}
        for landing in landings[-2 * WINDOW :]:
            self._restored.setdefault(landing.chars, {})[landing.digest] = landing

    @staticmethod
    def fingerprint(arguments: object) -> bytes | None:
        """The arguments of a call, to be taken before it runs: a tool may change in place what it was given.

        Args:
            arguments: a mapping, or the JSON text that the model spoke; ``None`` or nothing for none.

        Returns:
            What equal arguments and no others have in common; ``None`` where they are not plain JSON.
        """
        try:
            if not arguments:
                return _NO_ARGUMENTS
            found = arguments if type(arguments) is dict else read_arguments(arguments)
            if type(found) is not dict:  # a sentence about what is wrong with them, for one
                return None
            for key, item in found.items():
                if type(key) is not str or (type(item) not in _ATOMS and not _is_plain(item)):
                    return None
            data = _encode(found)
        except Exception:  # noqa: BLE001 - what JSON does not carry, and an object with opinions: the same as no other
            return None
        return data if len(data) <= _KEPT else b"#" + hashlib.sha256(data).digest()

    def landed(self, tool: str, arguments: bytes | None, text: str) -> int:
        """Note that a call has landed.

        Args:
            tool: its name.
            arguments: its `fingerprint`.
            text: what the model reads, before any note.

        Returns:
            How often it has landed in this way, this time included; 0 where that cannot be told.
        """
        if arguments is None:
            return 0
        key = tool, arguments, len(text)
        kept = text if len(text) <= _KEPT else hashlib.sha256(_bytes(text)).digest()
        for cell in self._young.get(key, _NONE):
            if cell[0] == kept:
                break
        else:
            cell = self._made_young(key, kept)
        times: int = cell[1] + 1
        cell[1] = times
        return times

    def _made_young(self, key: _Key, kept: str | bytes) -> _Cell:
        """How often a landing was seen that is not among the young ones, which it is from now on."""
        old = self._old.get(key, [])
        cell = next((each for each in old if each[0] == kept), None)
        if cell is not None:
            old.remove(cell)
        else:
            restored = self._restored.get(_chars(key))
            before = restored.pop(_digest(key, kept), None) if restored else None
            cell = [kept, 0 if before is None else before.times]
        if self._count >= WINDOW:
            self._young, self._old, self._count = {}, self._young, 0
        self._young.setdefault(key, []).append(cell)
        self._count += 1
        return cell

    def landings(self) -> tuple[Landing, ...]:
        """What is remembered, the older generation first; at most twice `WINDOW`, some forty bytes of JSON each."""
        restored = [landing for found in self._restored.values() for landing in found.values()]
        seen = [
            Landing(_digest(key, kept), _chars(key), times)
            for generation in (self._old, self._young)
            for key, cells in generation.items()
            for kept, times in cells
        ]
        return (*restored, *seen)[-2 * WINDOW :]


def note_on_repeat(tool: str) -> str:
    """The sentence that the model reads on the second landing, in brackets, on one line."""
    return (
        f"[{quote(tool)} has now been called 2 times with the same arguments, and what there is to read of its result "
        "is the same. Another call like it will most likely tell nothing new: change the arguments, or go on with what "
        "is here.]"
    )


def _is_plain(value: Any) -> bool:
    """Whether JSON carries a value so that no other one reads alike; the leaves of ``_ATOMS`` were looked at before."""
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or (type(item) not in _ATOMS and not _is_plain(item)):
                return False
        return True
    if kind is list:
        return all(type(item) in _ATOMS or _is_plain(item) for item in value)
    return kind is float and isfinite(value)


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _chars(key: _Key) -> int:
    return min(key[2], _KEPT + 1)


def _digest(key: _Key, kept: str | bytes) -> bytes:
    """What a landing is known by in another process; its parts cannot run into each other."""
    tool, arguments = _bytes(key[0]), key[1]
    head = b"%d %d %d\n" % (len(tool), len(arguments), _chars(key))
    told = head + tool + arguments + (_bytes(kept) if isinstance(kept, str) else kept)
    return hashlib.sha256(told).digest()[:20]
