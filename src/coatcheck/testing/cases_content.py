"""Conformance cases about what is stored: refs, put, delete, and the judgement of a put's words.

Laws: `reference/behaviour.md` 9.7, cases 1 to 3, 8, 11 to 13, 15 and 16, as changed by `design.md`
section 5; `cases.md` C5 and D5.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from coatcheck.artifacts.meta import Artifact
from coatcheck.artifacts.ref import digest_of, make_ref
from coatcheck.errors import IntegrityError, InvalidArtifact, UnknownParent
from coatcheck.scope import Scope
from coatcheck.testing.trial import HOME, Case, Trial, check, expect, put, read, refuses

__all__ = ["CONTENT_CASES", "malformed_words"]

_PAYLOADS = (b"payload", b"", bytes(range(256)), "\u00fc\u4e2d\U0001f600\r\n".encode(), bytes(1 << 20))


async def _put_head_get(trial: Trial) -> None:
    store = await trial.store()
    for data in _PAYLOADS:
        result = await put(store, data, label="a label", origin={"call": "c-7"})
        expect("created", result.created, True)
        expect("head after put", await store.head(HOME, result.meta.ref), result.meta)
        expect("get after put", await read(store, result.meta.ref), Artifact(result.meta, data))
        expect("bytes", result.meta.bytes, len(data))
        expect("label and origin", (result.meta.label, result.meta.origin), ("a label", {"call": "c-7"}))
        expect("created_at", result.meta.created_at, trial.clock.now)
        expect("expires_at without a ttl", result.meta.expires_at, None)


async def _ref_names_content(trial: Trial) -> None:
    store = await trial.store()
    for data in _PAYLOADS:
        meta = (await put(store, data, kind="dataset/rows", media_type="application/json")).meta
        expect("digest", meta.digest, digest_of(data))
        expect("ref", meta.ref, make_ref("dataset/rows", "application/json", digest_of(data)))


async def _same_content(trial: Trial) -> None:
    store = await trial.store()
    parent = (await put(store, b"parent")).meta.ref
    first = await put(store, label="first", origin={"call": "1"}, parents=[parent])
    trial.clock.advance(10)
    second = await put(store, label="second", origin={"call": "2"})
    expect("created of the second put", second.created, False)
    expect("meta after the second put", second.meta, first.meta)
    expect("head after the second put", await store.head(HOME, first.meta.ref), first.meta)
    expect("rows", len((await store.list(HOME)).artifacts), 2)
    await store.delete(HOME, first.meta.ref)
    third = await put(store, label="third")
    expect("created and label after a delete", (third.created, third.meta.label), (True, "third"))


async def _other_kind(trial: Trial) -> None:
    store = await trial.store()
    metas = [
        (await put(store)).meta,
        (await put(store, kind="test/other")).meta,
        (await put(store, kind="Test/Item")).meta,
        (await put(store, media_type="application/json")).meta,
    ]
    expect("different refs", len({meta.ref for meta in metas}), 4)
    await store.delete(HOME, metas[0].ref)
    for meta in metas[1:]:
        expect("meta of what was not deleted", (await read(store, meta.ref)).meta, meta)


async def _media_type(trial: Trial) -> None:
    store = await trial.store()
    for given, wanted in [
        ("text/plain", "text/plain"),
        ("Application/JSON; charset=utf-8", "application/json"),
        ("image/PNG", "image/png"),
        ("application/vnd.a+json;v=1;w=2", "application/vnd.a+json"),
    ]:
        meta = (await put(store, media_type=given)).meta
        expect(f"media type of {given}", meta.media_type, wanted)
        head = await store.head(HOME, meta.ref)
        expect("media type on head", head.media_type if head is not None else None, wanted)
        expect("ref", meta.ref, (await put(store, media_type=wanted)).meta.ref)


async def _delete(trial: Trial) -> None:
    store = await trial.store()
    ref, other = (await put(store, b"gone")).meta.ref, (await put(store, b"kept")).meta.ref
    for _ in range(2):
        await store.delete(HOME, ref)
        expect("head", await store.head(HOME, ref), None)
        expect("get", await store.get(HOME, ref), None)
        expect("list", [meta.ref for meta in (await store.list(HOME)).artifacts], [other])
    for never in (make_ref("test/item", "text/plain", digest_of(b"never put")), "no ref", "", "../../etc/passwd"):
        await store.delete(HOME, never)
    await read(store, other)


async def _parents(trial: Trial) -> None:
    store = await trial.store()
    near = (await put(store, b"near")).meta.ref
    brief = (await put(store, b"brief", expires_at=trial.clock.now + timedelta(seconds=5))).meta.ref
    foreign = (await put(store, b"foreign", scope=Scope(conversation="elsewhere"))).meta.ref
    never = make_ref("test/item", "text/plain", digest_of(b"never put"))

    child = (await put(store, b"child", parents=[near, brief])).meta
    expect("parents", child.parents, (near, brief))
    expect("parents on get", (await read(store, child.ref)).meta.parents, (near, brief))

    trial.clock.advance(5)
    unresolved = (never, foreign, brief, "no ref", "../..")
    error = await refuses(
        UnknownParent, put(store, b"orphan", parents=[near, *unresolved]), "parents that do not resolve"
    )
    expect("parents that the refusal names", error.refs, unresolved)
    await _nothing_came(store, b"orphan")


def malformed_words(now: datetime) -> list[dict[str, Any]]:
    """What no put may say, one word each; ``now`` is the store's."""
    return [
        *({"kind": kind} for kind in ("", "  ", "a\nb", "a\x00b", "k" * 129, "\ud800", None, 7)),
        *(
            {"media_type": text}
            for text in ("", "text", "text/", "/plain", "text/pl ain", "text/plain\n", "a/" + "b" * 127)
        ),
        *({"expires_at": when} for when in (now, now - timedelta(seconds=1), now.replace(tzinfo=None), 7)),
        *({"label": label} for label in ("l" * 257, "a\nb", "\ud800", 7)),
        *({"origin": origin} for origin in ({"a": "v" * 257}, {"a": 7}, {"k" * 65: "v"}, {"a": "\ud800"}, ["a"])),
        *({"parents": parents} for parents in ("art_", [7], 7)),
    ]


async def _malformed_puts(trial: Trial) -> None:
    store = await trial.store()
    for word in malformed_words(trial.clock.now):
        [field] = word
        error = await refuses(InvalidArtifact, put(store, **word), f"{word!r:.80}")
        check(field in str(error), f"the refusal of {word!r:.80} does not name {field}: {error}")
    for data in ("text", None, 7, [1]):
        await refuses(InvalidArtifact, put(store, data), f"data={data!r}")  # type: ignore[arg-type]
    await _nothing_came(store, b"payload")


async def _oversized(trial: Trial) -> None:
    store = await trial.store(max_bytes=10)
    kept = [(await put(store, data)).meta for data in (b"12345", b"67890")]
    error = await refuses(InvalidArtifact, put(store, b"x" * 11), "more than max_bytes")
    check("max_bytes" in str(error), f"the refusal does not name max_bytes: {error}")
    for meta in kept:
        expect("meta of what was there", (await read(store, meta.ref)).meta, meta)
    await _nothing_came(store, b"x" * 11)
    expect("created at exactly the budget", (await put(store, b"x" * 10)).created, True)


async def _verified(trial: Trial) -> None:
    store = await trial.store()
    damaged, sound = (await put(store, b"damaged")).meta, (await put(store, b"sound")).meta
    await trial.corrupt(store, HOME, damaged.ref)
    error = await refuses(IntegrityError, store.get(HOME, damaged.ref), "get of a changed payload")
    expect("what the error names", (error.ref, error.expected), (damaged.ref, damaged.digest))
    expect("head of a changed payload", await store.head(HOME, damaged.ref), damaged)
    expect("its neighbour", (await read(store, sound.ref)).data, b"sound")
    expect("rows", len((await store.list(HOME)).artifacts), 2)
    await store.delete(HOME, damaged.ref)
    expect("created after a delete", (await put(store, b"damaged")).created, True)
    expect("payload after a delete and a put", (await read(store, damaged.ref)).data, b"damaged")


async def _healed(trial: Trial) -> None:
    store = await trial.store()
    lost, kept = (await put(store, b"lost")).meta, (await put(store, b"kept")).meta
    await trial.unlink(store, HOME, lost.ref)
    expect("get without a payload", await store.get(HOME, lost.ref), None)
    expect("head without a payload", await store.head(HOME, lost.ref), None)
    expect("list", [meta.ref for meta in (await store.list(HOME)).artifacts], [kept.ref])
    expect("created when put again", (await put(store, b"lost")).created, True)
    expect("payload when put again", (await read(store, lost.ref)).data, b"lost")


async def _replaced(trial: Trial) -> None:
    store = await trial.store()
    meta = (await put(store, b"damaged")).meta
    await trial.corrupt(store, HOME, meta.ref)
    await put(store, b"damaged")
    expect("payload when put again", (await read(store, meta.ref)).data, b"damaged")
    expect("rows", [each.ref for each in (await store.list(HOME)).artifacts], [meta.ref])


async def _nothing_came(store: Any, data: bytes) -> None:
    """No artifact of this payload is there after a refused put."""
    digest = digest_of(data)
    found = [meta.ref for meta in (await store.list(HOME)).artifacts if meta.digest == digest]
    expect("what a refused put left", found, [])


CONTENT_CASES = (
    Case(
        "put-head-get",
        "What was put comes back byte for byte, and head says the same without the payload.",
        _put_head_get,
    ),
    Case("ref-names-content", "A ref is made of kind, media type and digest, and of nothing else.", _ref_names_content),
    Case("same-content", "The same content is one artifact, and the first put's words stand.", _same_content),
    Case("other-kind", "One payload under two kinds or media types is two artifacts.", _other_kind),
    Case("media-type", "The media type is kept in one spelling, on every answer.", _media_type),
    Case("delete", "Delete withdraws an artifact everywhere, and is harmless where there is none.", _delete),
    Case("parents", "Parents are kept if they resolve in the scope; else the put is refused and names them.", _parents),
    Case("malformed-put", "A malformed put is refused, names the field, and leaves nothing.", _malformed_puts),
    Case("oversized-put", "More than the whole budget is refused before anything is removed.", _oversized),
    Case("verified-get", "A payload that was changed is never handed out, and head still answers.", _verified),
    Case("damaged-payload", "A payload that was changed is stored again by the next put of its content.", _replaced),
    Case("lost-payload", "An artifact whose payload is gone is absent, and the next put stores it again.", _healed),
)
