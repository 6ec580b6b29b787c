"""The result envelope: a value with typed effects and a status beside it. One owner of its grammar.

The law: arbitrary text never promotes itself into control. A tool that wants to steer the host says so as data,
``{"content": ..., "effects": [...], "status": ...}``, and recognition is strict. A value is an envelope iff

1. it is an object (a ``dict``; JSON text is text, and another class is another class);
2. its keys are among ``content``, ``effects`` and ``status``;
3. ``content`` is there (null counts);
4. ``effects`` is an array;
5. each of its elements is an object whose ``kind`` is one of the two reserved words;
6. ``status`` is left out, or is one of the seven words exactly (null is not left out);
7. and it says something: no effects and no status is nothing.

Everything else is data and stays as it is, so a tool that never heard of envelopes pays two look-ups.
Recognition is not recursive: an envelope within ``content`` is content. An element with a reserved kind and
faulty fields does not undo the recognition: it is malformed, refused with a reason that teaches, never half
applied, and the others stand.

An author may write the envelope as an ``Envelope``, with effects as ``ProposeTransition`` and
``RequireInstruction``; it is recognised as its ``dict`` would be, and is encoded as that ``dict``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import msgspec

from coatcheck.errors import DeclarationError
from coatcheck.results.shapes import clip, describe, is_array, is_object, is_text, is_utf8, quote, spoken
from coatcheck.results.status import Status, read_status

__all__ = [
    "DeliveryLease",
    "Effect",
    "EffectKind",
    "Encoded",
    "Envelope",
    "Malformed",
    "ProposeTransition",
    "RequireInstruction",
    "decode_envelope",
    "explain_near_miss",
    "read_envelope",
]

EffectKind: TypeAlias = Literal["propose-transition", "require-instruction"]
DeliveryLease: TypeAlias = Literal["next-call", "until-skill-exit"]


class ProposeTransition(msgspec.Struct, frozen=True, tag_field="kind", tag="propose-transition", rename="camel"):
    """A tool proposes that the run moves to another skill. The host's skill graph decides.

    Attributes:
        target_skill_id: the skill to move to; on the wire ``targetSkillId``.
        reason: why, for the record; never optional.
    """

    kind: ClassVar[Literal["propose-transition"]] = "propose-transition"

    target_skill_id: str
    reason: str


class RequireInstruction(msgspec.Struct, frozen=True, tag_field="kind", tag="require-instruction", rename="camel"):
    """A tool asks that a registered instruction be delivered to the model in what follows.

    Attributes:
        instruction_id: an instruction that the host registered; on the wire ``instructionId``.
        delivery_lease: for how long; on the wire ``deliveryLease``. ``next-call`` is the next model call and
            no other, ``until-skill-exit`` every call until the present skill is left.
    """

    kind: ClassVar[Literal["require-instruction"]] = "require-instruction"

    instruction_id: str
    delivery_lease: DeliveryLease


Effect: TypeAlias = ProposeTransition | RequireInstruction


class Malformed(msgspec.Struct, frozen=True):
    """An effect of a known kind whose fields are faulty: refused, never half applied.

    Attributes:
        kind: the reserved word that it carried.
        position: its place among the effects, from 1.
        reason: what is wrong, naming the position and the wire field, without quoting a value.
    """

    kind: EffectKind
    position: int
    reason: str


# `effects` has a factory so that it is always encoded: `{"content": ..., "status": ...}` would be no envelope.
class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """A recognised envelope, and what an author may return in place of the ``dict``.

    Attributes:
        content: what the model reads: any value, by reference; ``msgspec.Raw`` when it came from wire bytes.
        effects: the valid effects, in declared order, repeats included.
        status: the status that the tool declared, if it declared one.
        malformed: the faulty effects, in declared order. An author leaves it out.
    """

    content: Any
    effects: tuple[Effect, ...] = msgspec.field(default_factory=lambda: ())
    status: Status | None = None
    malformed: tuple[Malformed, ...] = ()


# RFC 9110 section 8.3.1; the bound is that of a ref's header.
_MEDIA_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+/[!#$%&'*+.^_`|~0-9a-z-]+")
_MEDIA_TYPE_LIMIT = 128


class Encoded(msgspec.Struct, frozen=True):
    """Wire bytes as a tool or an adapter already has them, so that nobody decodes them only to encode them again.

    Attributes:
        raw: the payload, exactly ``bytes`` (a buffer that may still change has no digest).
        media_type: what the bytes are, normalised to lower case without parameters. In ``application/json`` an
            envelope, an absence and a ledger are recognised, and the bytes are measured and placed as they are.

    Raises:
        DeclarationError: when ``raw`` is not ``bytes``, or ``media_type`` is not a ``type/subtype``
            of at most 128 characters.
    """

    raw: bytes
    media_type: str = "application/json"

    def __post_init__(self) -> None:
        """Refuse what could not be stored, and normalise the media type."""
        raw: object = self.raw
        if not isinstance(raw, bytes):
            raise DeclarationError(
                f"refused: Encoded.raw must be bytes, but {describe(raw)}; encode text with .encode(), "
                "copy a buffer with bytes(...), and return any other value as it is"
            )
        declared: object = self.media_type
        normal = declared.partition(";")[0].strip().lower() if is_text(declared) else ""
        if len(normal) > _MEDIA_TYPE_LIMIT or not _MEDIA_TYPE.fullmatch(normal):
            found = f"it is {quote(declared)}" if is_text(declared) else describe(declared)
            raise DeclarationError(
                "refused: Encoded.media_type must be a type and a subtype, as application/json, "
                f"of at most {_MEDIA_TYPE_LIMIT} characters, but {found}"
            )
        msgspec.structs.force_setattr(self, "media_type", normal)


# For each kind its two wire fields, in the order in which they are judged, with what each must be.
_FIELDS: dict[EffectKind, tuple[tuple[str, str], tuple[str, str]]] = {
    "propose-transition": (
        ("targetSkillId", "the id of the skill to move to, as text that is not blank"),
        ("reason", "why the move is proposed, as text that is not blank"),
    ),
    "require-instruction": (
        ("instructionId", "the id of a registered instruction, as text that is not blank"),
        ("deliveryLease", "`next-call` or `until-skill-exit`"),
    ),
}
_KINDS: dict[str, EffectKind] = {kind: kind for kind in _FIELDS}
_LEASES: dict[str, DeliveryLease] = {word: word for word in get_args(DeliveryLease)}

# Unbound, so that a subclass of dict is read as the encoder reads it, and runs no code of its own.
_get = dict.get
_has = dict.__contains__
_size = dict.__len__


def read_envelope(value: Any) -> Envelope | None:
    """Recognise an envelope, by the seven rules of this module.

    Args:
        value: whatever a tool returned. It is not changed, and nothing of it is copied but the effects.

    Returns:
        The envelope, its ``content`` the very object that was returned; ``None`` when the value is data.
        Never raises.
    """
    try:
        cls = type(value)
        if cls is dict or issubclass(cls, dict):
            effects = _get(value, "effects")
            if effects is None or not _has(value, "content"):
                return None
            status = _get(value, "status", msgspec.UNSET)
            if _size(value) != (2 if status is msgspec.UNSET else 3) or not is_array(effects):
                return None
            return _read(_get(value, "content"), effects, status, ())
        if cls is Envelope:
            status = msgspec.UNSET if value.status is None else value.status
            carried = value.malformed
            if is_array(value.effects) and is_array(carried) and all(type(fault) is Malformed for fault in carried):
                return _read(value.content, value.effects, status, tuple(carried))
        return None
    except Exception:  # noqa: BLE001 - what raises when it is looked at is not of our shape
        return None


class _Wire(msgspec.Struct, forbid_unknown_fields=True):
    """The envelope's top level on the wire. The elements stay raw, so that the first unknown kind ends the reading."""

    content: msgspec.Raw
    effects: list[msgspec.Raw]
    status: Any = msgspec.UNSET


_WIRE = msgspec.json.Decoder(_Wire)
_OPENS_OBJECT = re.compile(r"[ \t\n\r]*\{")


def decode_envelope(raw: bytes | str) -> Envelope | None:
    """Recognise an envelope in wire bytes or JSON text, without decoding its content.

    The law: the answer is that of ``read_envelope`` on the decoded value, but for ``content``, which is the
    ``msgspec.Raw`` of its own bytes, and which keeps ``raw`` alive. Of keys that are given twice the last one
    counts, as in every JSON reader. It costs a syntax check of the whole, and a look at the encoding where it
    is not ASCII; what is no object, or opens with another key, costs nothing.

    Args:
        raw: the bytes of one JSON value, or its text.

    Returns:
        The envelope, or ``None`` when this is another value, not JSON, not UTF-8, or nested too deeply.

    Raises:
        TypeError: when ``raw`` is neither bytes nor text; a decoded value is for ``read_envelope``.
    """
    if isinstance(raw, str):
        if not _OPENS_OBJECT.match(raw):
            return None
        try:
            raw = raw.encode()
        except UnicodeEncodeError:
            return None
    try:
        wire = _WIRE.decode(raw)
        envelope = _read(wire.content, map(msgspec.json.decode, wire.effects), wire.status, ())
    except (msgspec.DecodeError, RecursionError):
        return None
    return envelope if envelope is not None and is_utf8(raw) else None


def explain_near_miss(value: Any) -> str | None:
    """Name the one slip that an author is likeliest to make: a status with no ``effects`` beside it.

    ``{"content": ..., "status": "denied"}`` is data, and stays data: a domain object may look so. But the status
    was more likely meant, and a result that silently lost its status routes as if none had been declared.

    Args:
        value: whatever a tool returned and ``read_envelope`` did not recognise. It is not changed.

    Returns:
        A sentence for the author that names the status and what to write; ``None`` for every other value. Never raises.
    """
    try:
        cls = type(value)
        if (cls is dict or issubclass(cls, dict)) and _has(value, "content") and _size(value) == 2:
            status = read_status(_get(value, "status"))
            if status is not None:
                return (
                    f"the tool returned `content` and `status: {status}` without `effects`: that is plain data, and "
                    "the status was not recorded. Write `effects: []` beside them to declare it"
                )
        return None
    except Exception:  # noqa: BLE001 - as above
        return None


def _read(content: Any, elements: Iterable[Any], status: object, carried: tuple[Malformed, ...]) -> Envelope | None:
    """Judge the elements and the status of what has the envelope's outer form; ``UNSET`` is no status."""
    word = None if status is msgspec.UNSET else read_status(status)
    if word is None and status is not msgspec.UNSET:
        return None
    effects: list[Effect] = []
    malformed = list(carried)
    for position, element in enumerate(elements, start=1):
        judged = _read_effect(position, element)
        if judged is None:
            return None
        if isinstance(judged, Malformed):
            malformed.append(judged)
        else:
            effects.append(judged)
    if word is None and not effects and not malformed:
        return None
    return Envelope(content, tuple(effects), word, tuple(malformed))


def _read_effect(position: int, element: object) -> Effect | Malformed | None:
    """One element of ``effects``: valid, malformed, or ``None`` for what makes the whole value data."""
    if is_object(element):
        word = _get(element, "kind")
        kind = _KINDS.get(word) if is_text(word) else None
        if kind is None:
            return None
        (name, _), (other, _) = _FIELDS[kind]
        return _judge(position, kind, _get(element, name, msgspec.UNSET), _get(element, other, msgspec.UNSET))
    if type(element) is ProposeTransition:
        return _judge(position, element.kind, element.target_skill_id, element.reason)
    if type(element) is RequireInstruction:
        return _judge(position, element.kind, element.instruction_id, element.delivery_lease)
    return None


def _judge(position: int, kind: EffectKind, name: object, other: object) -> Effect | Malformed:
    """Judge the two fields of an effect, in order; the first fault is the one that is named."""
    first, second = _FIELDS[kind]
    target = spoken(name)
    if target is None:
        return _fault(position, kind, first, name)
    if kind == "propose-transition":
        reason = spoken(other)
        return _fault(position, kind, second, other) if reason is None else ProposeTransition(target, reason)
    lease = _LEASES.get(other) if is_text(other) else None
    return _fault(position, kind, second, other) if lease is None else RequireInstruction(target, lease)


def _fault(position: int, kind: EffectKind, field: tuple[str, str], found: object) -> Malformed:
    name, wanted = field
    # Only the lease can be text that says something and be wrong all the same.
    problem = "it is other text" if spoken(found) else describe(found)
    sentence = f"effect {position} ({kind}) was not applied: `{name}` must be {wanted}, but {problem}"
    return Malformed(kind, position, clip(sentence, 240))
