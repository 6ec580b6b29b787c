"""Conformance cases about who sees what: scopes, absence, listings, and other processes.

Laws: `reference/behaviour.md` 9.7, cases 4 to 6, 9, 10 and 14; `cases.md` E1 to E3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from coatcheck.artifacts.meta import ArtifactMeta
from coatcheck.artifacts.port import ArtifactStore
from coatcheck.artifacts.ref import digest_of, make_ref
from coatcheck.errors import CoatcheckError, UnknownParent
from coatcheck.scope import Scope
from coatcheck.testing.trial import HOME, Case, Trial, check, expect, opened, put, read, refuses, stream

__all__ = ["ACCESS_CASES"]

_STRANGERS = (
    Scope(tenant="acme", principal="dana", conversation="c-43"),
    Scope(tenant="acme", principal="erin", conversation="c-42"),
    Scope(tenant="apex", principal="dana", conversation="c-42"),
    Scope(tenant="acme", conversation="c-42"),
    Scope(principal="dana", conversation="c-42"),
    Scope(conversation="c-42"),
)
_CONFUSABLE = (
    Scope(tenant="a/b", principal="c", conversation="d"),
    Scope(tenant="a", principal="b/c", conversation="d"),
    Scope(tenant="a", principal="b", conversation="c/d"),
    Scope(tenant="_", conversation="c"),
    Scope(conversation="c"),
    Scope(principal="_", conversation="c"),
    Scope(tenant="None", conversation="c"),
    Scope(tenant="A", conversation="c"),
    Scope(tenant="a", conversation="c"),
    Scope(tenant="_41", conversation="c"),
    Scope(tenant="a", conversation="C"),
    Scope(tenant="a/b", conversation="c"),
    Scope(tenant="a%2Fb", conversation="c"),
    Scope(tenant="a%2fb", conversation="c"),
    Scope(tenant="\u00e9", conversation="c"),
    Scope(tenant="e\u0301", conversation="c"),
    Scope(tenant="t" * 200, conversation="c"),
    Scope(tenant="t" * 201, conversation="c"),
    Scope(tenant="t" * 199 + "T", conversation="c"),
)
_AWKWARD = (
    "..",
    ".",
    "../../etc",
    "a/b/c",
    "/",
    "\\",
    "a b",
    " ",
    "'; DROP TABLE x; --",
    '"',
    "%2e%2e",
    "\x00",
    "\n",
    "CON",
)


_NO_SCOPES = (None, "", "c-5ecret", b"c-5ecret", 7, ("acme", "dana", "c-42"), {"conversation": "c-5ecret"})


async def _no_scope(trial: Trial) -> None:
    store = await trial.store()
    meta = (await put(store)).meta
    verbs: dict[str, Callable[[Any], Awaitable[object]]] = {
        "put": lambda scope: put(store, scope=scope),
        "put_stream": lambda scope: stream(store, b"payload", scope=scope),
        "head": lambda scope: store.head(scope, meta.ref),
        "get": lambda scope: store.get(scope, meta.ref),
        "open": lambda scope: opened(store, meta.ref, scope=scope),
        "delete": lambda scope: store.delete(scope, meta.ref),
        "list": lambda scope: store.list(scope),
        "sweep": lambda scope: store.sweep(scope),
    }
    for scope in _NO_SCOPES:
        for verb, call in verbs.items():
            if verb == "sweep" and scope is None:  # for a sweep that is everyone
                continue
            error = await refuses(TypeError, call(scope), f"{verb} with {scope!r} as the scope")
            check("5ecret" not in str(error), f"the refusal of {verb} quotes what was given: {error}")
    expect("list of a scope", (await store.list(HOME)).artifacts, (meta,))


async def _ref_alone(trial: Trial) -> None:
    store = await trial.store()
    meta = (await put(store)).meta
    for stranger in _STRANGERS:
        expect("head", await store.head(stranger, meta.ref), None)
        expect("get", await store.get(stranger, meta.ref), None)
        expect("open", await opened(store, meta.ref, scope=stranger), None)
        expect("list", (await store.list(stranger)).artifacts, ())
        await store.delete(stranger, meta.ref)
        expect("sweep", await store.sweep(stranger), ())
        await refuses(UnknownParent, put(store, b"child", scope=stranger, parents=[meta.ref]), "a foreign parent")
    expect("what strangers could not touch", (await read(store, meta.ref)).meta, meta)


async def _one_absence(trial: Trial) -> None:
    store = await trial.store()
    ref = (await put(store)).meta.ref
    expired = (await put(store, b"brief", expires_at=trial.clock.now + timedelta(seconds=5))).meta.ref
    foreign = (await put(store, b"foreign", scope=Scope(conversation="elsewhere"))).meta.ref
    trial.clock.advance(5)
    absent: list[object] = [
        make_ref("test/item", "text/plain", digest_of(b"never put")),
        expired,
        foreign,
        *(
            "",
            "art_",
            "no ref",
            ref.upper(),
            ref[:-1],
            ref + "0",
            " " + ref,
            ref + "\n",
            ref + "\x00",
            "art_" + "u" * 32,
        ),
        *(
            "../" + ref,
            ref + "/data",
            "/",
            "..",
            "%2e%2e",
            "art_../../../../../../../etc/passwd",
            "a" * 10_000,
            "\ud800",
        ),
        *(None, 7, ref.encode()),
    ]
    for name in absent:
        expect(f"head of {name!r:.60}", await store.head(HOME, name), None)  # type: ignore[arg-type]
        expect(f"get of {name!r:.60}", await store.get(HOME, name), None)  # type: ignore[arg-type]
        expect(f"open of {name!r:.60}", await opened(store, name), None)  # type: ignore[arg-type]
        await store.delete(HOME, name)  # type: ignore[arg-type]
    await read(store, ref)
    await read(store, foreign, scope=Scope(conversation="elsewhere"))


async def _confusable(trial: Trial) -> None:
    store = await trial.store()
    awkward = [Scope(tenant=text, principal=text, conversation=text) for text in (*_AWKWARD, "\u4e2d\U0001f600" * 40)]
    scopes = (*_CONFUSABLE, *awkward)
    metas: dict[Scope, ArtifactMeta] = {}
    for number, scope in enumerate(scopes):
        metas[scope] = (await put(store, b"%d" % number, scope=scope)).meta
    for number, scope in enumerate(scopes):
        expect(f"list of {scope}", (await store.list(scope)).artifacts, (metas[scope],))
        expect(f"payload in {scope}", (await read(store, metas[scope].ref, scope=scope)).data, b"%d" % number)


async def _own_table(trial: Trial) -> None:
    store = await trial.store()
    mine, theirs = HOME, Scope(tenant="acme", principal="dana", conversation="c-43")
    first = await put(store, scope=mine, label="mine")
    second = await put(store, scope=theirs, label="theirs")
    expect("refs of one payload", first.meta.ref, second.meta.ref)
    expect("created in the second scope", second.created, True)
    expect("list of the first", (await store.list(mine)).artifacts, (first.meta,))
    expect("list of the second", (await store.list(theirs)).artifacts, (second.meta,))
    await store.delete(mine, first.meta.ref)
    expect(
        "the second after a delete in the first", (await read(store, second.meta.ref, scope=theirs)).meta, second.meta
    )


async def _list_order(trial: Trial) -> None:
    store = await trial.store()
    metas = []
    for number in range(9):
        metas.append((await put(store, b"%d" % number)).meta)
        if number % 3 == 2:
            trial.clock.advance(1)
    wanted = sorted(metas, key=lambda meta: (-meta.created_at.timestamp(), meta.ref))
    expect("newest first, ties by ref", [*(await store.list(HOME)).artifacts], wanted)
    await put(store, b"0")
    expect("order after a second put", [*(await store.list(HOME)).artifacts], wanted)


async def _list_pages(trial: Trial) -> None:
    store = await trial.store()
    for number in range(51):
        await put(store, b"%d" % number)
        trial.clock.advance(number % 2)
    whole = (await store.list(HOME, limit=51)).artifacts
    expect("rows", len({meta.ref for meta in whole}), 51)
    expect("rows of a page of the default size", len((await store.list(HOME)).artifacts), 50)
    expect("cursor of the last page", (await store.list(HOME, limit=51)).cursor, None)
    for limit in (-1, 0, 1, 7, 17, 50):
        expect(f"pages of {limit}", await _pages(store, limit), whole)
    for cursor in ("", "garbage", "99", "9" * 1000, "0.art_", "\ud800"):
        expect(f"page at {cursor!r:.20}", (await store.list(HOME, cursor=cursor, limit=51)).artifacts, whole)
    last = (await store.list(HOME, limit=50)).cursor
    await store.delete(HOME, whole[50].ref)
    page = await store.list(HOME, cursor=last)
    expect("a page past the end", (page.artifacts, page.cursor), ((), None))


async def _pages(store: ArtifactStore, limit: int) -> tuple[ArtifactMeta, ...]:
    rows: list[ArtifactMeta] = []
    cursor: str | None = None
    for _ in range(60):
        page = await store.list(HOME, cursor=cursor, limit=limit)
        check(1 <= len(page.artifacts) <= max(1, limit), f"a page of {limit} has {len(page.artifacts)} rows")
        rows += page.artifacts
        cursor = page.cursor
        if cursor is None:
            break
    return tuple(rows)


async def _secrets(trial: Trial) -> None:
    store = await trial.store(max_bytes=100)
    secrets = ("tenant-5ecret", "principal-5ecret", "conversation-5ecret", "payload-5ecret")
    scope = Scope(tenant=secrets[0], principal=secrets[1], conversation=secrets[2])
    data = secrets[3].encode()
    never = make_ref("test/item", "text/plain", digest_of(b"never put"))
    puts: list[tuple[Any, dict[str, Any]]] = [
        (data * 100, {}),
        (secrets[3], {}),
        (data, {"parents": [never]}),
        (data, {"expires_at": trial.clock.now}),
        (data, {"kind": " "}),
        (data, {"media_type": "text"}),
    ]
    for payload, words in puts:
        for verb in (put, stream):
            call = verb(store, payload, scope=scope, **words)
            error: BaseException | None = await refuses(CoatcheckError, call, "a malformed put")
            while error is not None:
                told = f"{error} {error!r}"
                check(not any(secret in told for secret in secrets), f"a secret is in the text: {told}")
                error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


async def _another_process(trial: Trial) -> None:
    store = await trial.store()
    meta = (await put(store, label="mine")).meta
    other = await trial.reopened(store)
    expect("head elsewhere", await other.head(HOME, meta.ref), meta)
    expect("payload elsewhere", (await read(other, meta.ref)).data, b"payload")
    expect("open elsewhere", await opened(other, meta.ref), b"payload")
    expect("list elsewhere", (await other.list(HOME)).artifacts, (meta,))
    again = await put(other, label="theirs")
    expect("put elsewhere", (again.created, again.meta.label), (False, "mine"))
    again = await stream(other, b"pay", b"load", label="theirs")
    expect("put_stream elsewhere", (again.created, again.meta.label), (False, "mine"))


async def _not_remembered(trial: Trial) -> None:
    store = await trial.store()
    ref = (await put(store)).meta.ref
    other = await trial.reopened(store)
    await other.delete(HOME, ref)
    expect("get after a delete elsewhere", await store.get(HOME, ref), None)
    expect("open after a delete elsewhere", await opened(store, ref), None)
    expect("created after a delete elsewhere", (await put(store)).created, True)
    expect("payload elsewhere", (await read(other, ref)).data, b"payload")


ACCESS_CASES = (
    Case("ref-alone", "A ref opens nothing, lists nothing and deletes nothing in another scope.", _ref_alone),
    Case("not-a-scope", "Only a Scope is a scope: every verb refuses anything else.", _no_scope),
    Case("one-absence", "Missing, expired, foreign and malformed refs have one answer: None.", _one_absence),
    Case("confusable-scopes", "Scopes that look alike, or awkward, are apart, and lose nothing.", _confusable),
    Case("own-table", "The same payload in two scopes is each scope's own.", _own_table),
    Case("list-order", "A listing is newest first, ties by ref, and a second put moves nothing.", _list_order),
    Case("list-pages", "Following the cursors meets every row once.", _list_pages),
    Case("secrets", "No payload and no field of a scope is in the text of a refusal.", _secrets),
    Case("another-process", "What one process put, any other resolves.", _another_process),
    Case("not-remembered", "What another process deleted is gone at once, and can be put again.", _not_remembered),
)
