"""The tools and the rules of the demo. The tools are real: they work on what lies on every machine with Python.

A tool is an ordinary function; ``@cc.tool`` reads its name, its description and its arguments off the signature.
A rule is an ordinary function, too, and answers ``allow()``, ``deny(...)`` or ``ask(...)``.
"""

from __future__ import annotations

import base64
import difflib
import struct
import sysconfig
import zlib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import coatcheck as cc

__all__ = [
    "PNG_SIGNATURE",
    "RULES",
    "TOOLS",
    "count_packages",
    "describe_package",
    "guard_notes",
    "list_modules",
    "note_saver",
    "picture_of_module",
    "read_module",
    "search_source",
    "source_files",
]

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"

_STDLIB = Path(sysconfig.get_paths()["stdlib"])
# Nor is a folder taken whose name could not be imported, such as site-packages.
_LEFT_OUT = {"test", "tests", "idle_test", "__pycache__"}
_MAX_LINE = 200


# --- the tools ---


@cc.tool
def list_modules(package: str = "") -> list[dict[str, Any]]:
    """The modules of the standard library, or of one package of it, with their sizes in bytes."""
    return [{"module": name, "bytes": path.stat().st_size} for name, path in _modules(package).items()]


@cc.tool
def read_module(name: str) -> str:
    """The source of one module of the standard library."""
    return _source(name).decode(errors="replace")


@cc.tool(ceiling=cc.Ceiling(max_chars=20_000, narrow_by=["package", "limit"]))
def search_source(word: str, package: str = "", limit: int = 1_000_000) -> list[dict[str, Any]] | dict[str, Any]:
    """The lines of the standard library that hold a word, exactly as it is written."""
    modules = _modules(package)
    found = [
        {"module": name, "line": number, "text": line.strip()[:_MAX_LINE]}
        for name, path in modules.items()
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), start=1)
        if word in line
    ]
    if found:
        return found[:limit]
    # An empty list could mean "there is none" or "I could not look". This cannot.
    where = f"the package {package}" if package else "the standard library"
    return cc.absent(
        what=f"lines with the word {word!r}",
        checked=[f"the source of the {len(modules)} modules of {where}"],
        not_checked=[{"what": "the library's own tests", "why": "they are left out of every search"}],
        cannot_cover=[{"what": "modules written in C", "why": "they come without Python source"}],
    )


@cc.tool
def describe_package(name: str) -> dict[str, Any]:
    """What an installed package says about itself."""
    package = metadata.distribution(name)
    return {
        "name": package.name,
        "version": package.version,
        "summary": " ".join(package.metadata.get_all("Summary") or ()),
        "requires": [requirement for requirement in package.requires or () if "extra ==" not in requirement],
        "location": str(package.locate_file("")),
    }


@cc.tool
def picture_of_module(name: str) -> list[dict[str, Any]]:
    """The source of one module as a picture: every byte is one grey pixel."""
    source = _source(name)
    return [
        {"type": "text", "text": f"The {len(source)} bytes of {name}, 256 in a row"},
        {"type": "image", "mimeType": "image/png", "data": base64.b64encode(_grey_png(source, 256)).decode()},
    ]


def note_saver(folder: Path) -> cc.Tool[[str, str], str]:
    """The one tool that changes something: it writes notes into ``folder``."""

    @cc.tool
    def save_note(name: str, text: str) -> str:
        """Save a note."""
        (folder / name).write_text(text, encoding="utf-8")
        return f"Saved {len(text)} characters as {name}."

    return save_note


TOOLS = (list_modules, read_module, search_source, describe_package, picture_of_module)


# --- the rules ---


@cc.before_tool
def guard_notes(call: cc.ToolCall) -> cc.Allow | cc.Deny | cc.Ask:
    """Notes stay in their folder, and a person has to agree to each."""
    if call.name != "save_note":
        return cc.allow()
    name = call.arguments.get("name")
    if not isinstance(name, str) or name.startswith(".") or set(name) & set("/\\\0"):
        return cc.deny("Notes stay in their folder: give a plain file name, without a path.")
    return cc.ask(f"May the note {name} be saved?", {"text": call.arguments.get("text")})


@cc.after_tool
def no_password_code(call: cc.ToolCall, result: cc.Result) -> cc.Allow | cc.Deny:
    """Code that handles passwords is not shown."""
    if call.name == "read_module" and not result.error and "password" in result.text:
        return cc.deny("The source of this module handles passwords, and is not shown here. Ask about another one.")
    return cc.allow()


@cc.after_tool
def hide_location(call: cc.ToolCall, result: cc.Result) -> cc.Allow:
    """Where things lie on this machine is taken out."""
    if call.name == "describe_package" and isinstance(result.value, dict):
        return cc.allow({**result.value, "location": "(hidden)"}, "folders of this machine stay here")
    return cc.allow()


RULES = (guard_notes, no_password_code, hide_location)


# --- what they work on ---


def count_packages() -> int:
    """How many packages are installed beside the standard library."""
    return sum(1 for _ in metadata.distributions())


def source_files() -> list[Path]:
    """The Python files of the standard library, its tests left out."""
    return list(_modules().values())


def _modules(package: str = "") -> dict[str, Path]:
    """The Python files of the standard library by module name, in the order of the names; its tests left out."""
    modules: dict[str, Path] = {}
    folders = [_STDLIB]
    while folders:
        for path in folders.pop().iterdir():
            if path.suffix == ".py" and path.is_file():
                parts = path.relative_to(_STDLIB).with_suffix("").parts
                modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
            elif path.is_dir() and path.name.isidentifier() and path.name not in _LEFT_OUT:
                folders.append(path)
    if package and package not in modules:
        raise _unknown(package, modules)
    return {name: modules[name] for name in sorted(modules) if not package or f"{name}.".startswith(f"{package}.")}


def _source(module: str) -> bytes:
    modules = _modules()
    if module not in modules:
        raise _unknown(module, modules)
    return modules[module].read_bytes()


def _unknown(name: str, modules: Iterable[str]) -> LookupError:
    nearest = ", ".join(difflib.get_close_matches(name, list(modules))) or "none"
    return LookupError(f"The standard library has no module {name!r} in Python. Names like it: {nearest}.")


def _grey_png(pixels: bytes, width: int) -> bytes:
    """A picture in shades of grey, one byte a pixel."""
    rows = [pixels[start : start + width].ljust(width, b"\0") for start in range(0, len(pixels), width)]

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return b"".join(
        [
            PNG_SIGNATURE,
            chunk(b"IHDR", struct.pack(">IIBBBBB", width, len(rows), 8, 0, 0, 0, 0)),
            chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows))),
            chunk(b"IEND", b""),
        ]
    )
