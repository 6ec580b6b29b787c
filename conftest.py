"""The README's code blocks are tests.

One scheme, for ``README.md`` and any other Markdown file that is handed to pytest. What a block is
follows from its language:

* ``python``: the blocks run from top to bottom in one module, in an empty directory. An asynchronous
  example says ``anyio.run(main)`` itself; nothing is awaited behind the reader's back.
* ``output``: what the ``python`` block before it printed (``...`` stands for any text).
* ``console``, ``bash``, ``sh``: a line ``$ coatcheck ...`` is run and must succeed; the lines under it,
  where there are any, are what it printed. ``make TARGET`` must name a target of the Makefile. Other
  commands are there to be read.
* ``toml`` and ``json`` must parse; ``text`` is a picture.
* Any other language, or none, is an error: say here how it is tested.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from sybil import Document, Example, Region, Sybil
from sybil.parsers.markdown.lexers import FencedCodeBlockLexer

ROOT = Path(__file__).parent

Evaluator = Callable[[Example], "str | None"]


def matches(printed: str, expected: str) -> str | None:
    """Compare line by line as printed, where ``...`` in the expectation stands for any text."""
    pattern = re.escape("\n".join(line.rstrip() for line in expected.strip().splitlines())).replace(r"\.\.\.", ".*")
    actual = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    if re.fullmatch(pattern, actual, re.DOTALL):
        return None
    return f"The document shows:\n{expected}\nbut this was printed:\n{printed}"


def run_python(example: Example) -> str | None:
    """Run the block in the document's module, and keep what it prints for an ``output`` block."""
    module: ModuleType = example.namespace["module"]
    # Blank lines first, so that a traceback names the document's own line.
    source = "\n" * (example.line + example.parsed.line_offset) + example.parsed
    printed = io.StringIO()
    with contextlib.chdir(example.namespace["directory"].name), contextlib.redirect_stdout(printed):
        exec(compile(source, example.path, "exec", dont_inherit=True), module.__dict__)
    example.namespace["printed"] = printed.getvalue()
    return None


def compare_output(example: Example) -> str | None:
    """Compare with what the ``python`` block before this one printed."""
    return matches(example.namespace["printed"], example.parsed)


def commands(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with the output that the block shows for it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.replace("\\\n", " ").partition("\n")
        yield command.strip(), output.strip()


def run_commands(example: Example) -> str | None:
    """Run our own command, and hold the document to the Makefile's targets."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^(?:\$ )?make +([a-z][\w-]*)", example.parsed, re.MULTILINE):
        if not re.search(rf"^{target}:", makefile, re.MULTILINE):
            return f"The Makefile has no target {target!r}."
    for command, expected in commands(example.parsed):
        if not command.startswith("coatcheck"):
            continue
        folder = example.namespace["directory"].name
        # A store of the document's own: no command touches what lies in a person's data directory.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("COATCHECK_")}
        done = subprocess.run(
            [Path(sys.executable).with_name("coatcheck"), *shlex.split(command, comments=True)[1:]],
            cwd=folder,
            env={
                **inherited,
                "HOME": folder,
                "XDG_DATA_HOME": folder,
                "NO_COLOR": "1",
                "TERM": "dumb",
                "COLUMNS": "100",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=50,
        )
        if done.returncode != 0:
            return f"{command}: exit code {done.returncode}\n{done.stderr or done.stdout}"
        if expected and (difference := matches(done.stdout, expected)):
            return f"{command}: {difference}"
    return None


def parse_toml(example: Example) -> None:
    tomllib.loads(example.parsed)


def parse_json(example: Example) -> None:
    json.loads(example.parsed)


def look_at(example: Example) -> None:
    """A picture in text has nothing to run."""


def refuse(example: Example) -> str:
    return (
        f"A block in {example.region.lexemes['language']!r}: conftest.py says which languages are tested, and how; "
        "a picture is `text`."
    )


EVALUATORS: dict[str, Evaluator] = {
    "python": run_python,
    "output": compare_output,
    "console": run_commands,
    "bash": run_commands,
    "sh": run_commands,
    "toml": parse_toml,
    "json": parse_json,
    "text": look_at,
}


def fenced_blocks(document: Document) -> Iterable[Region]:
    """Every fenced block of a document, whatever its language: none goes untested by oversight."""
    for region in FencedCodeBlockLexer(language=r"[^\n]*")(document):
        language = region.lexemes["language"].strip()
        region.parsed = region.lexemes["source"]
        region.evaluator = EVALUATORS.get(language, refuse)
        yield region


def open_document(namespace: dict[str, Any]) -> None:
    """Give the document a real module: annotations of its functions and classes are resolved by module name."""
    module = ModuleType("readme_examples")
    sys.modules[module.__name__] = module
    namespace["module"] = module
    namespace["directory"] = tempfile.TemporaryDirectory(prefix="coatcheck-readme-")


def close_document(namespace: dict[str, Any]) -> None:
    del sys.modules[namespace["module"].__name__]
    namespace["directory"].cleanup()


pytest_collect_file = Sybil(
    parsers=[fenced_blocks], pattern="*.md", setup=open_document, teardown=close_document
).pytest()
