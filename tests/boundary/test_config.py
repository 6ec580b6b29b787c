"""A boundary from a file: every key is an argument of `Boundary`, and what is wrong is named by its path."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import coatcheck as cc

SCOPE = cc.Scope(conversation="c")
SECRET = "hunter2-hunter2-hunter2"


async def export(region: str) -> str:
    return region * 1500


class Approvals:
    async def claim(self, id: str) -> bool:
        return True


async def counted(call: cc.ToolCall, call_next: Any) -> Any:
    return await call_next(call)


class Store(cc.MemoryStore):
    """A store of the host's own."""


heard: list[cc.Event] = []


@pytest.fixture(autouse=True)
def host() -> Iterator[ModuleType]:
    """The module that the files name."""
    module: Any = ModuleType("the_host")
    module.export = export
    module.declared = cc.tool(name="declared")(export)
    module.allow = cc.before_tool(name="allow")(lambda call: cc.allow())
    module.rules = type("Rules", (), {"deny": cc.before_tool(name="deny")(lambda call: cc.deny("no"))})
    module.counted = counted
    module.within = cc.inside("placement", counted)
    module.approvals = Approvals()
    module.graph = cc.SkillGraph(["billing"], entries=["billing"])
    module.instructions = cc.InstructionCatalog([cc.Instruction("tone", "Be brief.")])
    module.hear = heard.append
    module.a_class = Approvals
    module.number = 5
    sys.modules["the_host"] = module
    heard.clear()
    yield module
    del sys.modules["the_host"]


def load(tmp_path: Path, text: str) -> cc.Boundary:
    path = tmp_path / "boundary.toml"
    path.write_text(text, encoding="utf-8")
    return cc.Boundary.from_toml(path)


FULL = f"""
tools = ["the_host:export", "the_host:declared"]
rules = ["the_host:allow", "the_host:rules.deny"]
middleware = ["the_host:counted", "the_host:within"]
store = "memory:?max_count=7"
rule_timeout = "15m"
secret = "{SECRET}"
approvals = "the_host:approvals"
approval_ttl = "7d"
concurrency = 8
on_event = "the_host:hear"
ledger_values = true
max_collected_bytes = 1_000_000
graph = "the_host:graph"
instructions = "the_host:instructions"
posture = "rails"
repeated_call_note = false
coverage_in_answers = true

[placement]
max_inline_chars = 1000
max_batch_chars = 50_000
preview_chars = 10
timeout = "2m"

[placement.per_tool]
declared = 5000
"search_*" = 20

[truncation]
max_chars = 20_000
"""


def test_every_key_reaches_the_boundary(tmp_path: Path, host: Any) -> None:
    boundary = load(tmp_path, FULL)
    assert list(boundary.tools) == ["export", "declared"]
    assert boundary.chain == ("counted", "truncation", "placement", "counted", "governance")
    assert boundary.rules.names == ("allow", "deny")
    assert isinstance(boundary.store, cc.MemoryStore)
    assert boundary._collect == 1_000_000
    assert boundary.graph is host.graph
    assert boundary.instructions is host.instructions
    assert (boundary.posture, boundary.repeated_call_note, boundary.coverage_in_answers) == ("rails", False, True)
    assert boundary.placement == cc.Placement(
        1000,
        per_tool={"declared": 5000, "search_*": 20},
        max_batch_chars=50_000,
        preview_chars=10,
        timeout=timedelta(minutes=2),
    )
    assert boundary.truncation == cc.Truncation(20_000)
    assert boundary.approvals is host.approvals
    assert boundary.sealer.portable
    assert boundary.rule_timeout == 900
    assert boundary._approval_ttl == timedelta(days=7)
    assert boundary._shared is not None
    assert boundary._ledger_values is True
    assert boundary.emit is not None


def test_a_store_may_be_a_table_of_its_url_and_its_settings(tmp_path: Path) -> None:
    boundary = load(
        tmp_path,
        """
        [store]
        url = "s3://bucket/a/b?region=eu-west-1"
        endpoint_url = "http://127.0.0.1:9000"
        ttl = "7d"
        part_size = 16_777_216
        timeout = 5
        [store.extra_put_args]
        ServerSideEncryption = "aws:kms"
        BucketKeyEnabled = true
        """,
    )
    assert isinstance(boundary.store, cc.S3Store)
    settings = boundary.store._settings
    assert (settings.bucket, settings.prefix, settings.part_size) == ("bucket", "a/b", 16 << 20)
    assert (settings.connection.region, settings.connection.timeout) == ("eu-west-1", 5.0)
    assert settings.retention.ttl == timedelta(days=7)
    assert settings.put_args == {"ServerSideEncryption": "aws:kms", "BucketKeyEnabled": True}


def test_a_store_may_be_wrapped_by_the_file(tmp_path: Path) -> None:
    boundary = load(tmp_path, '[store]\nurl = "memory:"\nmax_count = 7\nwrite_behind = true')
    assert isinstance(boundary.store, cc.WriteBehind)
    boundary = load(tmp_path, '[store]\nurl = "memory:"\nwrite_behind = false')
    assert isinstance(boundary.store, cc.MemoryStore)


def test_the_file_may_say_all_that_the_class_takes_but_the_clock(tmp_path: Path) -> None:
    from coatcheck.boundary.config import _File, _PlacementTable, _TruncationTable

    own = set(inspect.signature(cc.Boundary).parameters) - {"clock"}
    assert set(_File.__struct_fields__) == own
    assert set(_PlacementTable.__struct_fields__) == set(cc.Placement.__struct_fields__)
    assert set(_TruncationTable.__struct_fields__) == set(cc.Truncation.__struct_fields__)
    assert not [key for key in own if key not in FULL]


def test_an_empty_file_is_a_boundary_with_nothing_on(tmp_path: Path) -> None:
    boundary = load(tmp_path, "")
    assert (boundary.chain, dict(boundary.tools), boundary.store) == ((), {}, None)
    plain = cc.Boundary()
    assert (boundary.rule_timeout, boundary._approval_ttl) == (plain.rule_timeout, plain._approval_ttl)


@pytest.fixture
def small(tmp_path: Path, host: ModuleType) -> cc.Boundary:
    return load(
        tmp_path,
        'tools = ["the_host:export"]\nstore = "memory:"\non_event = "the_host:hear"\n'
        "[placement]\nmax_inline_chars = 1000\n",
    )


@pytest.mark.anyio
async def test_a_boundary_from_a_file_works(small: cc.Boundary) -> None:
    async with small:
        outcome = await small.session(SCOPE).call("export", {"region": "e"})
    assert isinstance(outcome, cc.Placed)
    assert [type(event).__name__ for event in heard] == ["ToolStarted", "ArtifactMinted", "ToolEnded"]


@pytest.mark.parametrize("as_text", [False, True])
def test_the_path_may_be_text_or_a_path(tmp_path: Path, as_text: bool) -> None:
    path = tmp_path / "boundary.toml"
    path.write_text("concurrency = 3")
    assert cc.Boundary.from_toml(str(path) if as_text else path)._shared is not None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5", 1.5), ('"90"', 90), ('"30s"', 30), ('"15m"', 900), ('"12h"', 43_200), ('"7d"', 604_800)],
)
def test_a_duration_is_seconds_or_text_with_a_unit(tmp_path: Path, text: str, seconds: float) -> None:
    assert load(tmp_path, f"rule_timeout = {text}").rule_timeout == seconds
    assert load(tmp_path, f"approval_ttl = {text}")._approval_ttl == timedelta(seconds=seconds)
    placed = load(tmp_path, f'store = "memory:"\n[placement]\nmax_inline_chars = 9\ntimeout = {text}')
    assert placed.placement is not None
    assert placed.placement.timeout == seconds


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("nonsense = 1", ("`nonsense`",)),
        ("[nonsense]\nx = 1", ("`nonsense`",)),
        ("clock = 'the_host:number'", ("`clock`",)),
        ("[placement]\nmax_inline_chars = 1\nmax_inline_char = 2", ("`max_inline_char`", "$.placement")),
        ("[truncation]\nmax_chars = 1\nnonsense = 2", ("`nonsense`", "$.truncation")),
        ("[placement]\n", ("`max_inline_chars`", "$.placement")),
        ("[truncation]\n", ("`max_chars`", "$.truncation")),
        ("truncation = 5", ("$.truncation",)),
        ('[truncation]\nmax_chars = "5"', ("$.truncation.max_chars",)),
        ("[truncation]\nmax_chars = 1.0", ("$.truncation.max_chars",)),
        ("[truncation]\nmax_chars = true", ("$.truncation.max_chars",)),
        ("[truncation]\nmax_chars = 0", ("$.truncation", "max_chars")),
        ("[placement]\nmax_inline_chars = 0", ("$.placement", "max_inline_chars")),
        ("[placement]\nmax_inline_chars = 1\npreview_chars = -1", ("$.placement", "preview_chars")),
        ("[placement]\nmax_inline_chars = 1\nmax_batch_chars = 0", ("$.placement", "max_batch_chars")),
        ("[placement]\nmax_inline_chars = 1\n[placement.per_tool]\nx = 0", ("$.placement", "'x'")),
        ("[placement]\nmax_inline_chars = 1\n[placement.per_tool]\nx = 'a'", ("$.placement.per_tool",)),
        ("[placement]\nmax_inline_chars = 1\ntimeout = 'soon'", ("$.placement.timeout", "soon")),
        ("[placement]\nmax_inline_chars = 1\ntimeout = 0", ("$.placement", "timeout")),
        ("rule_timeout = 'soon'", ("$.rule_timeout", "soon")),
        ("rule_timeout = '15 m'", ("$.rule_timeout",)),
        ("rule_timeout = ''", ("$.rule_timeout",)),
        ("rule_timeout = true", ("$.rule_timeout",)),
        ("rule_timeout = 0", ("rule_timeout", "0")),
        ("rule_timeout = -1.5", ("rule_timeout", "-1.5")),
        ("rule_timeout = nan", ("rule_timeout", "nan")),
        ("rule_timeout = 2031-01-02", ("$.rule_timeout",)),
        ("approval_ttl = '1w'", ("$.approval_ttl",)),
        ("approval_ttl = '999999999999d'", ("approval_ttl",)),
        ("concurrency = 0", ("concurrency", "0")),
        ("concurrency = '8'", ("$.concurrency",)),
        ("ledger_values = 1", ("$.ledger_values",)),
        ("store = 5", ("$.store",)),
        ("store = 'ftp://x'", ("ftp",)),
        ("store = 'memory:?ttl=soon'", ("ttl",)),
        ("[store]\nttl = '7d'", ("$.store.url",)),
        ("[store]\nurl = 5", ("$.store.url",)),
        ("[store]\nurl = 's3://bucket'\nttll = '7d'", ("$.store", "'ttll'")),
        ("[store]\nurl = 's3://bucket?ttl=7d'\nttl = '7d'", ("$.store", "ttl", "twice")),
        ("[store]\nurl = 's3://bucket'\npart_size = 1.5", ("$.store", "part_size", "1.5")),
        ("[store]\nurl = 's3://bucket'\nregion = ['x']", ("$.store", "region", "list")),
        ("[store]\nurl = 's3://bucket'\nwrite_behind = 1", ("$.store", "write_behind")),
        ("[store]\nurl = 's3://bucket'\n[store.extra_put_args]\nBody = 'x'", ("$.store", "extra_put_args", "'Body'")),
        ("[store]\nurl = 'memory:'\n[store.extra_put_args]\nACL = 'x'", ("$.store", "extra_put_args")),
        ("[placement]\nmax_inline_chars = 1", ("store",)),
        ("tools = 'the_host:export'", ("$.tools",)),
        ("tools = [5]", ("$.tools[0]",)),
        ("tools = ['the_host:export', 'nowhere:x']", ("$.tools[1]", "nowhere")),
        ("tools = ['the_host:export', 'the_host:missing']", ("$.tools[1]", "missing")),
        ("tools = ['the_host:export', 'the_host:export']", ("tools[1]", "export")),
        ("tools = ['the_host:export.missing']", ("$.tools[0]", "export.missing")),
        ("tools = ['the_host']", ("$.tools[0]",)),
        ("tools = ['the_host:']", ("$.tools[0]",)),
        ("tools = [':export']", ("$.tools[0]",)),
        ("tools = ['the_host:a:b']", ("$.tools[0]",)),
        ("tools = ['the host:export']", ("$.tools[0]",)),
        ("tools = ['.the_host:export']", ("$.tools[0]",)),
        ("tools = ['.:export']", ("$.tools[0]",)),
        ("tools = ['the_host..x:export']", ("$.tools[0]",)),
        ("tools = ['the_host:.']", ("$.tools[0]",)),
        ("tools = ['the_host:number']", ("tools[0]", "5")),
        ("rules = ['the_host:number']", ("rules[0]",)),
        ("rules = ['the_host:a_class']", ("rules[0]",)),
        ("rules = ['nowhere:x']", ("$.rules[0]", "nowhere")),
        ("middleware = ['the_host:number']", ("middleware[0]",)),
        ("middleware = ['the_host:missing']", ("$.middleware[0]",)),
        ("approvals = 'the_host:missing'", ("$.approvals",)),
        ("approvals = ['the_host:approvals']", ("$.approvals",)),
        ("on_event = 'the_host:missing'", ("$.on_event",)),
        ("on_event = 'the_host:number'", ("on_event", "5")),
        ("concurrency = ", ("TOML", "boundary.toml")),
        ("concurrency = 1\nconcurrency = 2", ("TOML",)),
        ("secret = 'tiny'", ("secret",)),
    ],
)
def test_what_is_wrong_is_refused_by_its_path(tmp_path: Path, text: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(cc.ConfigurationError) as refusal:
        load(tmp_path, text)
    for part in parts:
        assert part in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        "secret = '{secret}'\nnonsense = 1",
        "secret = ['{secret}']",
        "secret = {{ value = '{secret}' }}",
        "secret = '{secret}\n",
        "secret = {secret}",
        "'{secret}' = ",
        "secret = '{secret}'\nstore = 'ftp://x'",
        "secret = '{secret}'\n[placement]\nmax_inline_chars = 1",
        "secret = '{secret}'\ntools = ['nowhere:x']",
    ],
)
def test_the_secret_is_in_no_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(cc.ConfigurationError) as refusal:
        load(tmp_path, text.format(secret=SECRET))
    shown: BaseException | None = refusal.value
    while shown is not None:
        assert SECRET not in f"{shown} {shown!r}"
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)


def test_a_file_that_is_no_text_is_refused_and_one_that_is_not_there_is_the_systems_error(tmp_path: Path) -> None:
    path = tmp_path / "boundary.toml"
    path.write_bytes(b"secret = '\xff'")
    with pytest.raises(cc.ConfigurationError, match="UTF-8"):
        cc.Boundary.from_toml(path)
    with pytest.raises(FileNotFoundError):
        cc.Boundary.from_toml(tmp_path / "missing.toml")


def test_a_module_that_cannot_be_imported_is_named_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_a_host.py").write_text("import a_library_that_is_not_installed")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(cc.ConfigurationError, match="a_library_that_is_not_installed") as refusal:
        load(tmp_path, "tools = ['half_a_host:x']")
    assert "$.tools[0]" in str(refusal.value)


def test_a_subclass_builds_itself_from_a_file(tmp_path: Path) -> None:
    class Mine(cc.Boundary):
        """A host's own."""

    path = tmp_path / "boundary.toml"
    path.write_text("")
    assert type(Mine.from_toml(path)) is Mine


def test_a_name_may_be_that_of_a_list(tmp_path: Path, host: Any) -> None:
    host.tools = [cc.tool(name="one")(export), cc.tool(name="two")(export)]
    assert list(load(tmp_path, 'tools = ["the_host:tools", "the_host:export"]').tools) == ["one", "two", "export"]


def test_what_makes_the_readers_is_no_tool(tmp_path: Path) -> None:
    with pytest.raises(cc.ConfigurationError, match=r"tools\[0\] is the function that makes the readers: call it"):
        load(tmp_path, 'tools = ["coatcheck.readers:tools"]')


def test_a_key_that_is_none_is_told_with_those_that_are_and_the_file_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(cc.ConfigurationError, match=r"at `\$`; it may hold tools, rules, .*placement") as refusal:
        load(tmp_path, "placment = 5")
    assert str(refusal.value).count("boundary.toml") == 1
    with pytest.raises(
        cc.ConfigurationError, match=r"module:attribute, as in myapp\.tools:export_orders - at `\$\.tools"
    ):
        load(tmp_path, 'tools = ["myapp.tools.export"]')
