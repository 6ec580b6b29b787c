"""From any Python value to plain JSON values, or a refusal that names the path.

msgspec encodes some things silently that a tool boundary must not let pass: NaN becomes ``null``, two
keys become one, a set comes out in any order. This module is the definition of what is right; it walks
the value, so `rendering` asks it only where a cheap look says that it may matter.

The law (`design.md` section 4): nothing is stored as an approximation, and nothing becomes a success
that carries a ``repr``.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import datetime
import decimal
import enum
import math
import sys
import uuid
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any

import msgspec

from coatcheck.errors import DeclarationError, RenderingError
from coatcheck.results.envelope import Encoded

__all__ = [
    "MAX_DEPTH",
    "MAX_VALUES",
    "TOO_MANY",
    "Unfinished",
    "canonical",
    "canonical_rows",
    "is_steady",
    "said",
    "spell_path",
    "spell_step",
]

MAX_DEPTH = 200
"""How deep a value may be nested. Deeper is a mistake or an attack, and would exhaust the interpreter's stack."""

MAX_VALUES = 20_000_000
"""How many values one value may hold, each counted wherever it stands. A list of lists that share what they hold
doubles with every level: forty levels of it are a few bytes here, and more text than any machine can hold."""

TOO_MANY = f"more than {MAX_VALUES} values, or the same ones within each other over and over"

MAX_PATH_CHARS = 300
"""A longer path is shown by its beginning and its end."""

_ROWS_AT_ONCE = 256
_NATIVE = frozenset({bool, type(None), datetime.date, datetime.timedelta, uuid.UUID})
_STEADY = _NATIVE | {bytes, bytearray, decimal.Decimal}
_CLOCKS = frozenset({datetime.datetime, datetime.time})
_KEYS_AS_MSGSPEC_WRITES_THEM = frozenset(
    {float, datetime.datetime, datetime.date, datetime.time, uuid.UUID, decimal.Decimal}
)
_MAX_SHOWN_CHARS = 80


class Unfinished:
    """What JSON has no word for on purpose, and what says so by itself wherever it stands."""

    __slots__ = ()

    def refusal(self) -> DeclarationError:
        """Why it can go nowhere as it is; the text starts ``refused: ``."""
        raise NotImplementedError


class _Fault(Exception):
    """Something JSON cannot carry; each container it passes on its way up adds its own step to the path."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.steps: list[str] = []


class _Walk:
    """One walk over a value: how it is made, and how many values it may still meet."""

    __slots__ = ("keep_bytes", "left", "private")

    def __init__(self, *, keep_bytes: bool = False, private: bool = False) -> None:
        self.keep_bytes = keep_bytes
        self.private = private
        self.left = MAX_VALUES

    def meet(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise _Fault(TOO_MANY)


def canonical(value: object, *, keep_bytes: bool = False, private: bool = False) -> Any:
    """Return ``value`` as something that `msgspec.json` encodes without changing its meaning.

    Whatever needs no conversion is returned as it is, by reference. Dictionaries keep their order; sets
    come out sorted, so that every replica writes the same bytes; dataclasses, attrs classes, pydantic
    models, enums and numpy values become what they hold; bytes become base64 text (RFC 4648).

    Args:
        value: anything.
        keep_bytes: leave bytes as bytes, for whoever looks for binary (`coatcheck.results.binary`).
        private: share no container with ``value``, so that nobody who keeps it can change what comes back.

    Raises:
        RenderingError: for a float that is no number, a lone surrogate, keys that would become one,
            bytes as a key, a value nested too deep or within itself, too many values, or a type JSON has
            no word for. Its path says where (``$.rows[3].mean``).
    """
    try:
        return _convert(value, 0, _Walk(keep_bytes=keep_bytes, private=private))
    except Exception as error:  # noqa: BLE001 - a foreign value may raise anything
        raise _refusal(error) from None


def canonical_rows(value: list[Any]) -> Iterator[list[Any]]:
    """The elements of ``canonical(value)``, some hundred at a time: a long list of records is never there twice."""
    walk = _Walk()
    for start in range(0, len(value), _ROWS_AT_ONCE):
        try:
            yield _sequence(value[start : start + _ROWS_AT_ONCE], 0, walk, start)
        except Exception as error:  # noqa: BLE001 - a foreign value may raise anything
            raise _refusal(error) from None


def _refusal(error: Exception) -> RenderingError:
    fault = error if isinstance(error, _Fault) else _raised(error)
    return RenderingError(spell_path(fault.steps[::-1]), str(fault))


def is_steady(leaf: object) -> bool:
    """Whether ``msgspec`` alone writes ``leaf`` as it would write ``canonical(leaf)``: no text and no number, but a
    type that it knows as we do, or an empty container.
    """
    kind = type(leaf)
    if kind in _CLOCKS:
        return _is_on_the_minute(leaf)  # type: ignore[arg-type]  # narrowed by kind
    return kind in _STEADY or (kind in (dict, list, tuple) and not leaf)


def _convert(value: Any, depth: int, walk: _Walk) -> Any:
    kind = type(value)
    if kind is str:
        return _text(value)
    if kind is int:
        return value if value.bit_length() <= 64 else _long(value)
    if kind in _NATIVE:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise _Fault(
                f"a float that is not a finite number ({value}), which JSON cannot carry; send null or leave it out"
            )
        return value
    if kind in _CLOCKS:
        return value if _is_on_the_minute(value) else _on_the_minute(value)
    if kind is decimal.Decimal:
        return str(value)
    if depth > MAX_DEPTH:
        raise _Fault(f"nested deeper than {MAX_DEPTH} levels, or within itself")
    if isinstance(value, Mapping):
        return _mapping(value, depth, walk)
    if isinstance(value, enum.Enum):
        return _convert(_member(value), depth + 1, walk)
    if isinstance(value, (list, tuple, deque)):
        return _sequence(value, depth, walk)
    if isinstance(value, (set, frozenset)):
        walk.meet(len(value))
        items = [_convert(item, depth + 1, walk) for item in value]
        # Bytes that are kept stand where their text would.
        return _in_order(items, [_convert(item, depth + 1, _Walk()) for item in items] if walk.keep_bytes else items)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value) if walk.keep_bytes else base64.b64encode(bytes(value)).decode()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, msgspec.Struct):
        return _struct(value, depth, walk)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value, (field.name for field in dataclasses.fields(value)), depth, walk)
    if isinstance(value, str):
        return _text(str.__str__(value))
    if isinstance(value, int):
        return _convert(int(value), depth, walk)
    if isinstance(value, float):
        return _convert(float(value), depth, walk)
    return _guest(value, depth, walk)


def _text(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            bad = ascii(value[error.start])
            raise _Fault(
                f"text with a lone surrogate ({bad}) at character {error.start}, which UTF-8 cannot carry"
            ) from None
    return value


def _long(value: int) -> int:
    try:
        str(value)
    except ValueError:  # Python's own guard against conversions that take for ever
        raise _Fault(f"a whole number of {value.bit_length()} bits, which is too long to be written") from None
    return value


def _is_on_the_minute(value: datetime.datetime | datetime.time) -> bool:
    """Whether the offset from UTC, where there is one, can be written in hours and minutes."""
    offset = value.utcoffset()
    return offset is None or not (offset.seconds % 60 or offset.microseconds)


def _on_the_minute(value: datetime.datetime | datetime.time) -> datetime.datetime:
    """The same instant in UTC, because JSON's dates have no seconds in the offset and msgspec would round them."""
    if isinstance(value, datetime.time):
        raise _Fault(f"a time whose offset from UTC is no whole minute ({value.isoformat()}); send it as text")
    return value.astimezone(datetime.UTC)


def _mapping(value: Mapping[Any, Any], depth: int, walk: _Walk) -> dict[str, Any]:
    result: dict[str, Any] = {}
    changed = walk.private or type(value) is not dict
    for key, item in value.items():
        name = key if type(key) is str else _key(key)
        try:
            _text(name)
            converted = _convert(item, depth + 1, walk)
            if name in result:
                raise _Fault(f"two keys of the mapping become one in JSON: {name[:_MAX_SHOWN_CHARS]!a}")
        except Exception as error:  # noqa: BLE001 - a foreign value may raise anything
            raise _at(spell_step(name), error) from None
        changed = changed or converted is not item or name is not key
        result[name] = converted
    walk.meet(len(result))
    return result if changed else value  # type: ignore[return-value]  # unchanged: it is a dict


def _member(member: enum.Enum) -> object:
    """What an enum's member stands for: one that is text, or a whole number, is what it is; else its value."""
    if isinstance(member, str):
        return str.__str__(member)
    return int.__int__(member) if isinstance(member, int) else member.value


def _key(key: object) -> str:
    """How JSON writes a key that is not text; only where reading it back leaves no doubt what it was."""
    if isinstance(key, enum.Enum):
        return _key(_member(key))
    if isinstance(key, str):
        return str.__str__(key)
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, int):
        return str(_long(int(key)))
    if isinstance(key, float):
        key = float(key)
    if (type(key) is float and not math.isfinite(key)) or (type(key) is decimal.Decimal and key.is_nan()):
        raise _Fault(f"a mapping key that is no finite number ({key}), which JSON cannot carry; use text")
    if type(key) in _KEYS_AS_MSGSPEC_WRITES_THEM:
        return msgspec.json.encode(_convert(key, 0, _Walk())).decode().strip('"')
    raise _Fault(f"a mapping key of type {_name(key)}, which JSON cannot carry; use text")


def spell_path(steps: list[str]) -> str:
    """The path of some steps, from the outermost; the middle of a long one is left out."""
    path = "$" + "".join(steps)
    if len(path) <= MAX_PATH_CHARS:
        return path
    half = MAX_PATH_CHARS // 2
    return f"{path[:half]}…{path[1 - half :]}"


def spell_step(name: str) -> str:
    """One step of a path, into a mapping or a record."""
    if name.isidentifier() and len(name) <= _MAX_SHOWN_CHARS:
        return f".{name}"
    return f"[{name!a}]" if len(name) <= _MAX_SHOWN_CHARS else f"[{name[:_MAX_SHOWN_CHARS]!a}…]"


def _at(step: str, error: Exception) -> _Fault:
    """The fault, one step further up; what is no fault yet was raised by the value itself."""
    fault = error if isinstance(error, _Fault) else _raised(error)
    fault.steps.append(step)
    return fault


def _raised(error: Exception) -> _Fault:
    return _Fault(f"a value that JSON cannot carry ({said(error)})")


def said(error: Exception) -> str:
    """What an error says, where it can: one of a foreign value may raise when it is asked."""
    try:
        return f"{type(error).__name__}: {error}"[:300]
    except Exception:  # noqa: BLE001 - that is what is meant
        return "an error that does not say what it is"


def _sequence(value: Any, depth: int, walk: _Walk, first: int = 0) -> Any:
    result = []
    changed = walk.private or type(value) not in (list, tuple)
    for index, item in enumerate(value, first):
        try:
            converted = _convert(item, depth + 1, walk)
        except Exception as error:  # noqa: BLE001 - a foreign value may raise anything
            raise _at(f"[{index}]", error) from None
        changed = changed or converted is not item
        result.append(converted)
    walk.meet(len(result))
    return result if changed else value


def _in_order(items: list[Any], written: list[Any]) -> list[Any]:
    """The items of a set in the order of what they are written as, so that every replica writes the same."""
    places = range(len(items))
    try:
        order = sorted(places, key=written.__getitem__)
    except TypeError:  # of several types
        order = sorted(places, key=lambda place: msgspec.json.encode(written[place]))
    return [items[place] for place in order]


def _struct(value: msgspec.Struct, depth: int, walk: _Walk) -> Any:
    if isinstance(value, Encoded):
        raise _Fault("Encoded inside another value; return it as the whole result")
    changes = {}
    left_out = _left_out(value)
    for name in value.__struct_fields__:
        item = getattr(value, name)
        if name in left_out:
            continue
        try:
            converted = _convert(item, depth + 1, walk)
        except Exception as error:  # noqa: BLE001 - a foreign value may raise anything
            raise _at(spell_step(name), error) from None
        if converted is not item:
            changes[name] = converted
    walk.meet(len(value.__struct_fields__))
    twin = (
        copy.copy(value) if changes or walk.private else value
    )  # its own encoding rules (renames, tags, defaults) stay its own
    for name, converted in changes.items():
        msgspec.structs.force_setattr(twin, name, converted)
    return msgspec.to_builtins(twin, builtin_types=(bytes,)) if walk.keep_bytes else twin


def _left_out(value: msgspec.Struct) -> frozenset[str]:
    """The fields of a struct that it does not write: unset, or at their defaults as msgspec judges it."""
    if value.__struct_config__.array_like:  # every place has to be filled
        return frozenset()
    items = {name: getattr(value, name) for name in value.__struct_fields__}
    left_out = {name for name, item in items.items() if item is msgspec.UNSET}
    if value.__struct_config__.omit_defaults:
        defaults = value.__struct_defaults__
        for name, default in zip(value.__struct_fields__[len(items) - len(defaults) :], defaults, strict=True):
            item, kind = items[name], type(items[name])
            if item is default or (kind in (list, dict, set) and not item and _factory(default) is kind):
                left_out.add(name)
    return frozenset(left_out)


def _factory(default: Any) -> Any:
    return getattr(default, "factory", None)


def _fields(value: object, names: Any, depth: int, walk: _Walk) -> dict[str, Any]:
    items = {name: getattr(value, name) for name in names}
    return _mapping({name: item for name, item in items.items() if item is not msgspec.UNSET}, depth + 1, walk)


def _guest(value: Any, depth: int, walk: _Walk) -> Any:
    """Values of libraries that are asked about only where they are loaded already: this module imports none."""
    cls = type(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if isinstance(value, (numpy.datetime64, numpy.timedelta64)):
            return _numpy_time(value, depth, walk)
        if isinstance(value, numpy.ndarray):
            if value.size > walk.left:  # a broadcast array takes no room before it is a list
                raise _Fault(TOO_MANY)
            if _is_masked(value):
                if not value.ndim and value.dtype.names is None:
                    raise _Fault("a masked element, which JSON cannot carry; send null or leave it out")
                elements = list(value) if value.ndim else [value[name] for name in value.dtype.names]
                return _convert(elements, depth + 1, walk)
            if value.dtype.kind in "mMV":  # it may hold times, which `tolist` makes bare integers, or None
                return _convert(list(value) if value.ndim else value[()], depth + 1, walk)
            return _convert(value.tolist(), depth + 1, walk)
        if isinstance(value, numpy.generic):
            record = isinstance(value, numpy.void) and value.dtype.names is not None
            plain = list(value) if record else value.item()
            return _refuse(value) if isinstance(plain, numpy.generic) else _convert(plain, depth + 1, walk)
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return _convert(value.model_dump(by_alias=True), depth + 1, walk)
    if "attr" in sys.modules and hasattr(cls, "__attrs_attrs__"):
        return _fields(value, (attribute.name for attribute in cls.__attrs_attrs__), depth, walk)
    return _refuse(value)


def _is_masked(value: Any) -> bool:
    """Whether an array has masked elements, which `tolist` makes None; of a record each field may be one."""
    masked = sys.modules.get("numpy.ma")
    if masked is None or not isinstance(value, masked.MaskedArray) or value.mask is masked.nomask:
        return False
    return value.dtype.names is not None or bool(value.mask.any())


def _numpy_time(value: Any, depth: int, walk: _Walk) -> Any:
    """A date or a duration of numpy's, where Python has the same one; a bare count of some unit says nothing."""
    plain = value.item()
    if plain is None:
        raise _Fault("a date or duration that is none (NaT), which JSON cannot carry; send null or leave it out")
    if not isinstance(plain, int):
        return _convert(plain, depth + 1, walk)
    text = str(value)
    return text if text[:1].isdigit() and "-" in text else _refuse(value)


def _refuse(value: object) -> Any:
    if isinstance(value, Coroutine):
        value.close()  # it will never run: say so in the error, not in a warning later
        raise _Fault(f"a coroutine that was never awaited ({getattr(value, '__qualname__', '?')})")
    if isinstance(value, Unfinished):
        raise _Fault(str(value.refusal()))
    raise _Fault(f"a value of type {_name(value)}, which JSON cannot carry")


def _name(value: object) -> str:
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
