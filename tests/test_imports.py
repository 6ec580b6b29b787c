"""``import coatcheck`` costs what its core needs, and nothing that is optional."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys

import pytest

# What optional parts, tests or tools may load, but a host that only wants the core must not pay for.
UNWANTED = {
    "store clients": {"aiobotocore", "aiohttp", "boto3", "botocore", "duckdb", "httpx", "jmespath", "re2"},
    "command line": {"click", "rich", "typer"},
    "frameworks": {
        "agents",
        "fastapi",
        "fastmcp",
        "langchain",
        "langchain_core",
        "langgraph",
        "mcp",
        "pydantic_ai",
        "jwt",
        "starlette",
        "uvicorn",
    },
    "value types that tools may use": {"attr", "attrs", "numpy", "pydantic", "pydantic_core"},
    "the other event loop": {"trio"},
}


def modules_after(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after one statement."""
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys\nprint(*sys.modules, sep='\\n')"],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    # Less what the interpreter itself starts with: path entries in site-packages may import on their own.
    return modules_after("import coatcheck") - modules_after("pass")


@pytest.mark.parametrize("kind", UNWANTED)
def test_importing_coatcheck_loads_nothing_optional(loaded: set[str], kind: str) -> None:
    roots = {name.partition(".")[0] for name in loaded}
    assert {name for name in roots if name in UNWANTED[kind] or name.startswith("langchain")} == set()


def modules_of_extras() -> set[str]:
    """The top-level modules of every distribution that an extra of coatcheck names, as far as it is installed."""
    required = [
        re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]
        for line in importlib.metadata.requires("coatcheck") or ()
        if "extra ==" in line
    ]
    named = {re.sub(r"[-_.]+", "-", name).lower() for name in required}
    return {
        module
        for module, distributions in importlib.metadata.packages_distributions().items()
        if named & {re.sub(r"[-_.]+", "-", name).lower() for name in distributions}
    }


def test_importing_coatcheck_loads_nothing_of_an_extra(loaded: set[str]) -> None:
    extras = modules_of_extras()
    assert {"aiobotocore", "duckdb", "re2", "rich", "starlette", "stringzilla", "zlib_ng"} <= extras
    assert {name.partition(".")[0] for name in loaded} & extras == set()


def test_the_core_is_imported_where_no_extra_is_installed() -> None:
    missing = dict.fromkeys(sorted(modules_of_extras() - {"anyio", "msgspec"}))
    statement = f"import sys; sys.modules.update({missing}); import coatcheck, coatcheck.readers, coatcheck.testing"
    assert {"coatcheck", "coatcheck.readers", "coatcheck.testing"} <= modules_after(statement)


@pytest.mark.parametrize("room", ["adapters", "cli", "gateway", "readers", "service", "testing"])
def test_importing_coatcheck_loads_only_the_rooms_of_the_core(loaded: set[str], room: str) -> None:
    assert {name for name in loaded if f"{name}.".startswith(f"coatcheck.{room}.")} == set()


def test_the_probe_sees_what_an_import_loads() -> None:
    assert {"coatcheck", "anyio", "msgspec"} <= modules_after("import coatcheck, anyio, msgspec")
