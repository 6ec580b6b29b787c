"""The reference's vectors about refs, scopes, retention, payloads and the store.

A vector that `design.md` section 3 parts from stands in `PARTED` by id, with the numbers of the partings; where our own
right value differs, the test asserts it. Every other runs as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coatcheck import ArtifactRefused, ArtifactResolved, Boundary, Failed, Inline, ToolContext, present, tool
from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.artifacts.memory import MemoryStore
from coatcheck.artifacts.meta import PutResult
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.artifacts.ref import digest_of, is_ref
from coatcheck.artifacts.retention import Retention, Row, plan_retention, resolve_expires_at
from coatcheck.errors import ConfigurationError, InvalidArtifact, UnknownParent
from coatcheck.scope import Scope, scope_segments
from coatcheck.testing import ManualClock
from tests.reference._forms import UNDEFINED, load, untag

FILES = (
    "assertRetention",
    "isArtifactRef",
    "payloadMeasure",
    "planRetention",
    "resolveExpiresAt",
    "scopeKeyPrefix",
    "scopeSegment",
    "storeScript",
)
VECTORS = {vector["id"]: vector for name in FILES for vector in load(name)}

# Every put of `storeScript` parts from the reference in one field, besides what stands here: it has a digest (16).
PARTED: dict[str, tuple[int, ...]] = {
    "assertRetention/fraction-count": (18,),
    "isArtifactRef/ok": (1,),
    "payloadMeasure/json-obj": (16,),
    "payloadMeasure/json-null": (16,),
    "payloadMeasure/text-seven": (16,),
    "payloadMeasure/binary": (16,),
    "payloadMeasure/json-nonascii": (16,),
    "scopeKeyPrefix/full": (13,),
    'scopeSegment/"ACME"': (13,),
    'scopeSegment/".."': (13,),
    'scopeSegment/"."': (13,),
    'scopeSegment/""': (18,),
    'scopeSegment/"~a"': (13,),
    'scopeSegment/"a%2Fb"': (13,),
    'scopeSegment/"x y"': (13,),
    'scopeSegment/"\u00fcn\u00ef"': (13,),
    'scopeSegment/"q\'\\""': (13,),
    'scopeSegment/"a.b"': (13,),
    'scopeSegment/"-_.!~*()"': (13,),
    "storeScript/absent-vs-underscore": (16, 18),
    "storeScript/budget-is-per-scope": (16,),
    "storeScript/delete-twice": (16,),
    "storeScript/expiry": (16,),
    "storeScript/foreign-scope-is-null": (16,),
    "storeScript/identical-bytes-two-refs": (1, 16),
    "storeScript/oversized-refused-keeps-others": (16,),
    "storeScript/paging": (1, 16),
    "storeScript/parents-foreign-or-expired": (16,),
    "storeScript/present-ok": (16,),
    "storeScript/put-sweeps-expired": (1, 14, 16),
    "storeScript/round-trip": (16,),
    "storeScript/slash-shifts-are-other-scopes": (16,),
    "storeScript/ttl-stamps": (1, 16),
    "storeScript/wants-all-judged": (16,),
    "storeScript/wants-required-and-optional": (16,),
}
SEGMENTS = {
    "ACME": "_41_43_4d_45",
    "..": "_2e_2e",
    ".": "_2e",
    "~a": "_7ea",
    "a%2Fb": "a_252_46b",
    "x y": "x_20y",
    "\u00fcn\u00ef": "_c3_bcn_c3_af",
    "q'\"": "q_27_22",
    "a.b": "a_2eb",
    "-_.!~*()": "-_5f_2e_21_7e_2a_28_29",
}

tried: set[str] = set()


def vectors(name: str) -> pytest.MarkDecorator:
    """One test a vector of a file."""
    ids = [vector["id"] for vector in load(name)]
    tried.update(ids)
    return pytest.mark.parametrize("vector", [VECTORS[each] for each in ids], ids=ids)


def moment(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def milliseconds(when: datetime | None) -> int | None:
    return None if when is None else round(when.timestamp() * 1000)


def dials(retention: dict[str, Any] | None) -> dict[str, Any]:
    spelled = {"ttlMs": "ttl", "maxBytesPerScope": "max_bytes", "maxCountPerScope": "max_count"}
    named = {spelled[name]: value for name, value in (retention or {}).items()}
    if "ttl" in named:
        named["ttl"] = timedelta(milliseconds=named["ttl"])
    return named


def test_every_vector_runs() -> None:
    assert tried == VECTORS.keys()
    assert PARTED.keys() <= tried


@vectors("isArtifactRef")
def test_a_ref_is_told_by_its_form(vector: dict[str, Any]) -> None:
    parted = vector["id"] in PARTED  # a ref of the reference is none of ours
    assert is_ref(vector["input"]["value"]) == (vector["expect"]["is_ref"] and not parted)


@vectors("scopeSegment")
def test_a_field_becomes_a_segment(vector: dict[str, Any]) -> None:
    field = untag(vector["input"]["value"])
    if field == "":
        with pytest.raises(ConfigurationError, match="must not be empty"):
            Scope(tenant=field, conversation="c")
        return
    [segment, _, _] = scope_segments(Scope(tenant=None if field is UNDEFINED else field, conversation="c"))
    assert segment == (SEGMENTS[field] if vector["id"] in PARTED else vector["expect"]["segment"])


@vectors("scopeKeyPrefix")
def test_a_scope_becomes_a_prefix(vector: dict[str, Any]) -> None:
    segments = scope_segments(scope_of(vector["input"]["scope"]))
    prefix = "".join(f"{part}/" for part in (vector["input"]["root"], *segments) if part is not None)
    assert prefix == ("artifacts/_54/p/c/" if vector["id"] in PARTED else vector["expect"]["prefix"])


@vectors("assertRetention")
def test_a_dial_is_judged(vector: dict[str, Any]) -> None:
    retention = untag(vector["input"]["retention"])
    given = dials(None if retention is UNDEFINED else retention)
    if vector["expect"]["accepted"] and vector["id"] not in PARTED:
        Retention(**given)
    else:
        with pytest.raises(ConfigurationError):
            Retention(**given)


@vectors("resolveExpiresAt")
def test_an_expiry_is_the_sooner_of_the_caller_s_and_the_ttl(vector: dict[str, Any]) -> None:
    given = vector["input"]
    now = moment(given["now"])
    assert now is not None
    retention = None if given["retention"] is None else Retention(**dials(given["retention"]))
    assert milliseconds(resolve_expires_at(moment(given["caller"]), retention, now)) == vector["expect"]["expires_at"]


@vectors("planRetention")
def test_what_leaves_is_planned(vector: dict[str, Any]) -> None:
    given = vector["input"]
    now = moment(given["now"])
    assert now is not None
    rows = [
        # What the reference evicts by the last access, we evict by the last put (14); the plan is the same.
        Row(row["ref"], row["kind"], row["bytes"], moment(row["lastAccessedAt"]) or now, moment(row.get("expiresAt")))
        for row in given["rows"]
    ]
    retention = None if given["retention"] is None else Retention(**dials(given["retention"]))
    plan = plan_retention(rows, given["incoming_bytes"], retention, now)
    assert plan.refused == vector["expect"]["refused"]
    assert [[gone.ref, gone.reason] for gone in plan.swept] == vector["expect"]["swept"]


def canonical(data: Any) -> bytes:
    """The bytes that a payload is stored as: text in UTF-8, binary as it is, anything else in compact JSON."""
    if isinstance(data, str):
        return data.encode()
    return data if isinstance(data, bytes) else msgspec.json.encode(data)


@vectors("payloadMeasure")
def test_a_payload_is_measured_as_it_is_stored(vector: dict[str, Any]) -> None:
    data = canonical(untag(vector["input"]["data"]))
    assert len(data) == vector["expect"]["bytes"]
    assert digest_of(data) == vector["expect"]["digest"].replace("sha-256:", "sha256:")


# Scripts


def scope_of(scope: dict[str, str] | None) -> Scope:
    fields = {"conversationId": "conv-1"} if scope is None else dict(scope)
    return Scope(conversation=fields.pop("conversationId"), **fields)


class Script:
    """Runs one script on a store of ours, and tells each step in the reference's words."""

    def __init__(self, store: ArtifactStore, clock: ManualClock, *, own_payloads: bool = False) -> None:
        self.store = store
        self.clock = clock
        self.own_payloads = own_payloads
        self.refs: dict[str, str] = {}

    def ref(self, name: str) -> str:
        return self.refs[name[1:]] if name.startswith("@") else name

    def name(self, ref: str) -> str:
        return next(name for name, each in self.refs.items() if each == ref)

    async def step(self, step: dict[str, Any]) -> dict[str, Any]:
        try:
            scope = scope_of(step.get("scope"))
            told: dict[str, Any] = await getattr(self, step["op"])(scope, step)
        except InvalidArtifact:
            return {"refused": "ERR_INVALID_ARTIFACT"}
        except UnknownParent:
            return {"refused": "ERR_UNKNOWN_PARENT_REF"}
        except ConfigurationError:
            return {"refused": "ConfigurationError"}
        return told

    async def put(self, scope: Scope, step: dict[str, Any]) -> dict[str, Any]:
        data = canonical(step["as"] if self.own_payloads else step["data"])
        result = await self.store.put(
            scope,
            data,
            kind=step.get("kind", "test/kind"),
            media_type=step.get("media_type", "text/plain"),
            label=step.get("label"),
            expires_at=moment(step.get("expires_at")),
            parents=[self.ref(parent) for parent in step.get("parents", ())],
        )
        assert result.meta.digest == digest_of(data)  # parting 16
        self.refs.setdefault(step["as"], result.meta.ref)
        return self.told(result)

    def told(self, result: PutResult) -> dict[str, Any]:
        return {
            "ok": True,
            "bytes": result.meta.bytes,
            "created_at": milliseconds(result.meta.created_at),
            "expires_at": milliseconds(result.meta.expires_at),
            "digest": None,
            "parents": [self.name(ref) for ref in result.meta.parents] or None,
            "swept": [[self.name(gone.ref), gone.reason] for gone in result.swept],
        }

    async def get(self, scope: Scope, step: dict[str, Any]) -> dict[str, Any]:
        artifact = await self.store.get(scope, self.ref(step["ref"]))
        if artifact is None:
            return {"null": True}
        is_json = artifact.meta.media_type == "application/json"
        data = msgspec.json.decode(artifact.data) if is_json else artifact.data.decode()
        return {"data": data, "media_type": artifact.meta.media_type}

    async def head(self, scope: Scope, step: dict[str, Any]) -> dict[str, Any]:
        meta = await self.store.head(scope, self.ref(step["ref"]))
        if meta is None:
            return {"null": True}
        return {"kind": meta.kind, "bytes": meta.bytes, "has_payload": hasattr(meta, "data")}

    async def delete(self, scope: Scope, step: dict[str, Any]) -> dict[str, Any]:
        await self.store.delete(scope, self.ref(step["ref"]))
        return {"ok": True}

    async def list(self, scope: Scope, step: dict[str, Any]) -> dict[str, Any]:
        words = {word: step[word] for word in ("cursor", "limit") if word in step}
        page = await self.store.list(scope, **words)
        return {"refs": [self.name(meta.ref) for meta in page.artifacts], "more": page.cursor is not None}

    async def list_all(self, scope: Scope, step: dict[str, Any]) -> dict[str, Any]:
        pages: list[list[str]] = []
        cursor: str | None = None
        while not pages or cursor is not None:
            page = await self.store.list(scope, cursor=cursor, limit=step["limit"])
            pages.append([self.name(meta.ref) for meta in page.artifacts])
            cursor = page.cursor
        return {"pages": pages}

    async def present(self, scope: Scope, step: dict[str, Any]) -> dict[str, Any]:
        arguments = {name: self.ref(value) for name, value in step["args"].items()}
        outcome = await Boundary([present], store=self.store).session(scope).call("present", arguments)
        assert isinstance(outcome, Inline)
        shown = msgspec.json.decode(outcome.text)
        assert shown == outcome.value
        assert (shown["presented"], self.name(shown["ref"])) == (True, step["args"]["ref"][1:])
        return {"ok": True, "keys": list(shown), "as": shown["as"], "snapshot": shown["snapshot"]}

    async def wants(self, scope: Scope, step: dict[str, Any]) -> dict[str, Any]:
        """A call of a tool that wants them. Which of its arguments are required, its signature says; one that is none
        has no ``None`` for its default, which would let a model speak null.
        """
        wants, events = step["wants"], list[Any]()

        async def use(d: Any = ..., e: Any = ..., *, ctx: ToolContext, **rest: Any) -> Any:
            given = {name: value for name, value in {"d": d, "e": e}.items() if value is not ...}
            kinds = {name: meta.kind for name, meta in ctx.wanted.items()}
            return {"ok": True, "args": {**given, **rest}, "wanted_kinds": kinds, "resolved_order": list(kinds)}

        async def needs_d(d: Any, e: Any = ..., *, ctx: ToolContext, **rest: Any) -> Any:
            return await use(d, e, ctx=ctx, **rest)

        required = {*step.get("input_schema", {}).get("required", ())} & wants.keys()  # of others the schema speaks
        assert required <= {"d"}
        takes = tool(name="use", wants=wants)(needs_d if required else use)
        session = Boundary([takes], store=self.store, on_event=events.append).session(scope)
        arguments = {name: self.ref(value) if isinstance(value, str) else value for name, value in step["args"].items()}
        outcome = await session.call("use", arguments)
        if isinstance(outcome, Inline):
            told: dict[str, Any] = msgspec.json.decode(outcome.text)
            assert {event.via for event in events if isinstance(event, ArtifactResolved)} <= {"get"}
            assert sum(isinstance(event, ArtifactResolved) for event in events) == len(told["wanted_kinds"])
            return told
        assert isinstance(outcome, Failed)
        assert not outcome.executed
        refused = [event for event in events if isinstance(event, ArtifactRefused)]
        assert {event.op for event in refused} == {"dispatch"}
        named = re.findall(r"(?<=[.] )([de]) (?:is|takes|names) ", outcome.text)
        refusals = [
            {"arg": name, "kind": wants[name], "reason": event.reason, "has_ref": event.ref is not None}
            for name, event in zip(named, refused, strict=True)
        ]
        assert all(wants[name] in outcome.text for name in named)
        live = [name for name, ref in self.refs.items() if f"{ref} (" in outcome.text]
        return {"ok": False, "refusals": refusals, "lists_live": len(live)}

    async def tick(self, scope: Scope, step: dict[str, Any]) -> dict[str, Any]:
        self.clock.advance(step["ms"] / 1000)
        return {"ok": True}


@pytest.fixture(params=["memory", "directory"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., ArtifactStore]:
    if request.param == "memory":
        return MemoryStore
    return lambda **options: DirectoryStore(tmp_path, **options)


async def run(make: Callable[..., ArtifactStore], vector: dict[str, Any], **how: bool) -> list[dict[str, Any]]:
    start = moment(1000)
    assert start is not None
    clock = ManualClock(start)
    store = make(clock=clock, **dials(vector["input"].get("retention")))
    script = Script(store, clock, **how)
    return [await script.step(step) for step in untag(vector["input"]["steps"])]


def agreed(vector: dict[str, Any], told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The reference's steps; where it says only that a step went well, ours are as good."""
    steps: list[dict[str, Any]] = vector["expect"]["steps"]
    return [
        ours if theirs == {"ok": True} and "null" not in ours and "refused" not in ours else theirs
        for theirs, ours in zip(steps, told, strict=True)
    ]


# Equal bytes are one artifact (1): then the vector is run with a payload of its own for each put as well.
EQUAL_BYTES = {vector for vector, partings in PARTED.items() if 1 in partings and vector.startswith("storeScript/")}


@pytest.mark.anyio
@vectors("storeScript")
async def test_a_script_goes_as_it_does_in_the_reference(
    make: Callable[..., ArtifactStore], vector: dict[str, Any]
) -> None:
    told = await run(make, vector)
    expected = agreed(vector, told)
    put: dict[str, Any] = {"ok": True, "bytes": 1, "created_at": 1000}
    put |= {"expires_at": None, "digest": None, "parents": None, "swept": []}
    match vector["id"]:
        case "storeScript/absent-vs-underscore":  # 18: an empty field is refused
            expected[2] = {"refused": "ConfigurationError"}
        case "storeScript/identical-bytes-two-refs":  # 1: what was deleted under one name is deleted
            expected[3:] = [{"null": True}, {"null": True}]
        case "storeScript/put-sweeps-expired":  # 1: what had expired is put again; nothing left
            expected[2] = {**put, "created_at": 1020}
        case "storeScript/ttl-stamps":  # 1: an expiry only grows
            expected[:] = [{**put, "expires_at": 1100}] * 3
        case "storeScript/paging":  # 1: five puts, one artifact; and a cursor that is none reads as the start
            one: dict[str, Any] = {"refs": ["a"], "more": False}
            expected[:] = [*([put, {"ok": True}] * 4), put, {"pages": [["a"]]}, one, one, one, one]
    assert told == expected


@pytest.mark.anyio
@pytest.mark.parametrize("vector_id", sorted(EQUAL_BYTES))
async def test_a_script_with_payloads_that_differ_goes_as_it_does_in_the_reference(
    make: Callable[..., ArtifactStore], vector_id: str
) -> None:
    vector = VECTORS[vector_id]
    told = await run(make, vector, own_payloads=True)
    expected = agreed(vector, told)
    match vector_id:
        case "storeScript/put-sweeps-expired":  # 14: a put removes only what a budget forces out
            expected[2] = {**expected[2], "swept": []}
        case "storeScript/paging":  # a number is no cursor of ours
            expected[-1] = {"refs": ["e", "d"], "more": True}
        case "storeScript/identical-bytes-two-refs":  # the payload of `b` is its own name
            expected[3] = {**expected[3], "data": "b"}
    assert told == expected
