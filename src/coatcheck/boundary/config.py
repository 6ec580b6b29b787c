"""A boundary from a TOML file. The keys are the arguments of `Boundary`; an unknown one is refused with its path."""

from __future__ import annotations

import importlib
import tomllib
from datetime import timedelta
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

import msgspec

from coatcheck.artifacts.open import open_store
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.artifacts.retention import parse_duration
from coatcheck.errors import ConfigurationError
from coatcheck.steps.placement import Placement
from coatcheck.steps.truncation import Truncation

__all__ = ["read_toml"]

_OBJECT = r"^[\w.]+:[\w.]+$"
_Object = Annotated[str, msgspec.Meta(pattern=_OBJECT)]
_Duration = int | float | str


class _PlacementTable(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    max_inline_chars: int
    per_tool: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    max_batch_chars: int | msgspec.UnsetType = msgspec.UNSET
    preview_chars: int | msgspec.UnsetType = msgspec.UNSET
    timeout: _Duration | msgspec.UnsetType = msgspec.UNSET


class _TruncationTable(msgspec.Struct, forbid_unknown_fields=True):
    max_chars: int


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """What the file may say. A key that is left out leaves `Boundary`'s own default."""

    tools: list[_Object] | msgspec.UnsetType = msgspec.UNSET
    rules: list[_Object] | msgspec.UnsetType = msgspec.UNSET
    middleware: list[_Object] | msgspec.UnsetType = msgspec.UNSET
    store: str | dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    placement: _PlacementTable | msgspec.UnsetType = msgspec.UNSET
    truncation: _TruncationTable | msgspec.UnsetType = msgspec.UNSET
    rule_timeout: _Duration | msgspec.UnsetType = msgspec.UNSET
    secret: str | msgspec.UnsetType = msgspec.UNSET
    approvals: _Object | msgspec.UnsetType = msgspec.UNSET
    approval_ttl: _Duration | msgspec.UnsetType = msgspec.UNSET
    concurrency: int | msgspec.UnsetType = msgspec.UNSET
    on_event: _Object | msgspec.UnsetType = msgspec.UNSET
    ledger_values: bool | msgspec.UnsetType = msgspec.UNSET
    max_collected_bytes: int | msgspec.UnsetType = msgspec.UNSET
    graph: _Object | msgspec.UnsetType = msgspec.UNSET
    instructions: _Object | msgspec.UnsetType = msgspec.UNSET
    posture: str | msgspec.UnsetType = msgspec.UNSET
    repeated_call_note: bool | msgspec.UnsetType = msgspec.UNSET
    coverage_in_answers: bool | msgspec.UnsetType = msgspec.UNSET


def read_toml(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a file into the arguments of `Boundary`.

    Raises:
        ConfigurationError: with the path of what is wrong (``$.placement.max_inline_chars``), never with a value
            of ``$.secret``.
        OSError: where the file cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        file = msgspec.convert(tomllib.loads(text), _File)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"it is not TOML: {error}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"it is not UTF-8 at byte {error.start}") from None
    except msgspec.ValidationError as error:
        raise ConfigurationError(_mended(str(error))) from None
    settings = {name: value for name, value in msgspec.structs.asdict(file).items() if value is not msgspec.UNSET}
    if isinstance(file.store, dict):
        settings["store"] = _store(file.store)
    for name in ("tools", "rules", "middleware"):
        if name in settings:
            loaded = [_load(spec, f"$.{name}[{index}]") for index, spec in enumerate(settings[name])]
            settings[name] = [each for found in loaded for each in (found if isinstance(found, list) else [found])]
    for name in ("approvals", "on_event", "graph", "instructions"):
        if name in settings:
            settings[name] = _load(settings[name], f"$.{name}")
    for name in ("rule_timeout", "approval_ttl"):
        if name in settings:
            settings[name] = _duration(f"$.{name}", settings[name])
    if "placement" in settings:
        settings["placement"] = _placement(settings["placement"])
    if "truncation" in settings:
        settings["truncation"] = _at("$.truncation", Truncation, max_chars=settings["truncation"].max_chars)
    return settings


def _mended(problem: str) -> str:
    """What msgspec says of a file, and what would be right."""
    if "matching regex" in problem:
        return problem.replace(f"`str` matching regex {_OBJECT!r}", "module:attribute, as in myapp.tools:export_orders")
    if "unknown field" in problem and " - at " not in problem:
        return f"{problem} - at `$`; it may hold {', '.join(_File.__struct_fields__)}"
    return problem


def _placement(table: _PlacementTable) -> Placement:
    settings = {name: value for name, value in msgspec.structs.asdict(table).items() if value is not msgspec.UNSET}
    if "timeout" in settings:
        settings["timeout"] = _duration("$.placement.timeout", settings["timeout"])
    placement: Placement = _at("$.placement", Placement, **settings)
    return placement


def _duration(path: str, value: _Duration) -> float | timedelta:
    if not isinstance(value, str):
        return value
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ConfigurationError(f"{path}: {value!r:.40} is no duration: {error}") from None


def _at(path: str, make: Any, **settings: Any) -> Any:
    try:
        return make(**settings)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _load(spec: str, path: str) -> Any:
    """The object that ``module:attribute`` names."""
    module_name, _, attribute = spec.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigurationError(f"{path}: the module of {spec!r} cannot be imported ({error})") from error
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise ConfigurationError(f"{path}: {module_name} has no {attribute!r}") from None
    return found


def _store(table: dict[str, Any]) -> ArtifactStore:
    """The store of a table: its URL, and settings beside it."""
    url = table.pop("url", None)
    if not isinstance(url, str):
        raise ConfigurationError('$.store.url is missing: say url = "s3://bucket/prefix", or the like')
    try:
        return open_store(url, table)
    except ConfigurationError as error:
        raise ConfigurationError(f"$.store: {error}") from None
