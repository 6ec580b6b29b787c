"""Arguments that are refs: what a tool's author declares with ``wants``, and in which form the tool takes the payload.

Law (`reference/behaviour.md` 9.8): the model speaks a ref, the tool receives the data. All arguments are judged before
any is answered, and the kind has to be exactly the one that is wanted.
"""

from __future__ import annotations

import keyword
import types
import typing
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import msgspec.inspect

from coatcheck.artifacts.port import ArtifactReader
from coatcheck.artifacts.ref import check_kind
from coatcheck.errors import ConfigurationError, InvalidArtifact

__all__ = ["Form", "Want", "bare", "check_wants", "ref_hint", "spoken_name"]

Form = Literal["value", "bytes", "text", "path", "reader"]
"""How a tool takes a payload: decoded, as it is, as text, as a private file, or as a reader of it."""

_FORMS: Mapping[Any, Form] = {bytes: "bytes", str: "text", Path: "path", ArtifactReader: "reader"}


class Want(msgspec.Struct, frozen=True):
    """One argument that is a ref.

    Attributes:
        spoken: the argument's name, as the model speaks it.
        kind: what the artifact has to be.
        form: how the tool takes it. type: what the value is converted to; `Any` for no conversion.
    """

    spoken: str
    kind: str
    form: Form
    type: Any = Any


def check_wants(tool: str, wants: object, hints: Mapping[str, Any], named: Container[str]) -> dict[str, Want]:
    """The declared arguments, each with the form that its annotation asks for.

    Args:
        hints: the types of the tool's parameters.
        named: those that a model gives by name.

    Raises:
        ConfigurationError: naming what cannot be honoured.
    """
    if wants is None:
        return {}
    if not isinstance(wants, Mapping) or not wants:
        raise ConfigurationError(f"tool {tool}: wants must map arguments to kinds, as {{'dataset': 'dataset/rows'}}")
    checked: dict[str, Want] = {}
    for argument, kind in wants.items():
        if not isinstance(argument, str) or argument not in named:
            raise ConfigurationError(f"tool {tool}: wants names {argument!r:.80}, which is no parameter of it")
        try:
            check_kind(kind)
        except InvalidArtifact as error:
            raise ConfigurationError(f"tool {tool}: wants[{argument!r}]: {error}") from None
        hint = bare(hints[argument])
        form = _FORMS.get(hint, "value") if isinstance(hint, type) else "value"
        if form == "value":
            _check_value(f"tool {tool}: {argument}", hint)
        checked[argument] = Want(spoken_name(argument), kind, form, hint)
    return checked


def _check_value(parameter: str, hint: Any) -> None:
    """A type that no decoded payload can ever have would refuse every call."""
    try:
        msgspec.json.Decoder(hint)
        info = msgspec.inspect.type_info(hint)
        never = isinstance(info, msgspec.inspect.CustomType) and not any(
            issubclass(each, info.cls) for each in (dict, list, str, bytes, int, float, bool, type(None))
        )
    except (TypeError, ValueError, NameError) as error:
        raise ConfigurationError(f"{parameter} has a type that no payload can be made ({error})") from error
    if never:
        raise ConfigurationError(
            f"{parameter} has a type that no payload can be made ({hint!r:.80}): take what JSON has, a Struct, a "
            "dataclass, bytes, str, a Path or an ArtifactReader"
        )


def ref_hint(want: Want) -> Any:
    """What the model is told of such an argument."""
    return Annotated[str, msgspec.Meta(description=f"The ref of an artifact of the kind {want.kind}.")]


def spoken_name(parameter: str) -> str:
    """A parameter that ends in an underscore because its name is a word of Python (``as_``) is spoken without it."""
    return parameter[:-1] if parameter.endswith("_") and keyword.iskeyword(parameter[:-1]) else parameter


def bare(hint: Any) -> Any:
    """A type without ``None`` beside it, and without annotations."""
    if typing.get_origin(hint) is Annotated:
        return bare(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        others = [each for each in typing.get_args(hint) if each is not type(None)]
        if len(others) == 1:
            return bare(others[0])
    return hint
