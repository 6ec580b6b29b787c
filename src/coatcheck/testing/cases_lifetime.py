"""Conformance cases about how long and how much: expiry, budgets, sweeps.

Laws: `design.md` section 3, parting 14, and section 5; `api.md`; `cases.md` C3, D1 and D3. A store may state an
expiry that is up to a tenth of its ttl sooner than the last put and the ttl, and the cases allow that.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from coatcheck.artifacts.meta import Swept
from coatcheck.errors import InvalidArtifact
from coatcheck.scope import Scope
from coatcheck.testing.trial import HOME, Case, Trial, check, expect, expires, listed, opened, put, read, refuses

__all__ = ["LIFETIME_CASES"]


async def _expiry_stated(trial: Trial) -> None:
    store = await trial.store(ttl=100)
    start = trial.clock.now
    plain = (await put(store, b"plain")).meta
    expires(plain.expires_at, start, 100)
    sooner = (await put(store, b"sooner", expires_at=start + timedelta(seconds=50))).meta
    expect("the caller's sooner expiry", sooner.expires_at, start + timedelta(seconds=50))
    later = (await put(store, b"later", expires_at=start + timedelta(days=9))).meta
    expires(later.expires_at, start, 100)
    for meta in (plain, sooner, later):
        expect("expiry on head", await store.head(HOME, meta.ref), meta)
    await refuses(InvalidArtifact, put(store, b"born", expires_at=start), "an expiry of now")
    expect("rows", len((await store.list(HOME)).artifacts), 3)

    trial.clock.advance(49.999999)
    await read(store, sooner.ref)
    trial.clock.advance(0.000001)
    expect("head at the very moment", await store.head(HOME, sooner.ref), None)
    expect("get at the very moment", await store.get(HOME, sooner.ref), None)
    check(sooner.ref not in await listed(store), "an expired artifact is listed")
    trial.clock.advance(50)
    expect("list after the ttl", await listed(store), [])


async def _never_extended_by_reads(trial: Trial) -> None:
    store = await trial.store(ttl=20)
    ref = (await put(store)).meta.ref
    trial.clock.advance(15)
    await read(store, ref)
    await opened(store, ref)
    await store.head(HOME, ref)
    await store.list(HOME)
    trial.clock.advance(6)
    expect("get at 21 of 20", await store.get(HOME, ref), None)
    expect("open at 21 of 20", await opened(store, ref), None)
    expect("head at 21 of 20", await store.head(HOME, ref), None)


async def _refreshed_by_puts(trial: Trial) -> None:
    store = await trial.store(ttl=100)
    first = (await put(store)).meta
    trial.clock.advance(99 if first.expires_at is not None and _left(trial, first.expires_at) > 99 else 89)
    second = await put(store)
    expect("created", second.created, False)
    expires(second.meta.expires_at, trial.clock.now, 100)
    expect("created_at", second.meta.created_at, first.created_at)
    trial.clock.advance(12)
    expect("sweep", [gone.ref for gone in await store.sweep() if gone.ref == first.ref], [])
    expect("payload after the first expiry and a sweep", (await read(store, first.ref)).data, b"payload")
    expect("meta", (await read(store, first.ref)).meta, second.meta)


async def _only_grows(trial: Trial) -> None:
    store = await trial.store()
    start = trial.clock.now
    far, near = start + timedelta(seconds=100), start + timedelta(seconds=50)
    expect("first", (await put(store, b"a", expires_at=near)).meta.expires_at, near)
    expect("later", (await put(store, b"a", expires_at=far)).meta.expires_at, far)
    expect("sooner", (await put(store, b"a", expires_at=near)).meta.expires_at, far)
    expect("never", (await put(store, b"a")).meta.expires_at, None)
    meta = (await put(store, b"a", expires_at=near)).meta
    expect("after never", meta.expires_at, None)
    expect("head", await store.head(HOME, meta.ref), meta)


async def _expired_is_gone(trial: Trial) -> None:
    store = await trial.store(ttl=10)
    first = (await put(store, label="first")).meta
    trial.clock.advance(11)
    second = await put(store, label="second")
    expect("created", second.created, True)
    expect("ref", second.meta.ref, first.ref)
    expect("words", (second.meta.label, second.meta.created_at), ("second", trial.clock.now))
    expect("payload", (await read(store, first.ref)).data, b"payload")


async def _count_budget(trial: Trial) -> None:
    store = await trial.store(max_count=50)
    refs: list[str] = []
    swept: list[Swept] = []
    for number in range(60):
        result = await put(store, b"%d" % number)
        refs.append(result.meta.ref)
        swept += result.swept
        expect("rows", len(await listed(store)), min(number + 1, 50))
        trial.clock.advance(1)
    expect("what was swept", swept, [Swept(ref, "test/item", 1, "max-count") for ref in refs[:10]])
    for ref in refs[:10]:
        expect("get of what was swept", await store.get(HOME, ref), None)
    for ref in refs[10:]:
        await read(store, ref)


async def _bytes_budget(trial: Trial) -> None:
    store = await trial.store(max_bytes=100)
    refs: list[str] = []
    for data in (b"a" * 30, b"b" * 30, b"c" * 30, b"d" * 10):
        result = await put(store, data)
        refs.append(result.meta.ref)
        expect("swept within the budget", result.swept, ())
        trial.clock.advance(1)
    result = await put(store, b"e" * 31)
    expect("what was swept", result.swept, tuple(Swept(ref, "test/item", 30, "max-bytes") for ref in refs[:2]))
    expect("what stayed", await listed(store), [result.meta.ref, refs[3], refs[2]])


async def _oldest_put_leaves(trial: Trial) -> None:
    store = await trial.store(max_count=2)
    old = (await put(store, b"put twice")).meta
    trial.clock.advance(1)
    young = (await put(store, b"put once")).meta
    trial.clock.advance(1)
    expect("a second put at a full budget", (await put(store, b"put twice")).swept, ())
    trial.clock.advance(1)
    await read(store, young.ref)
    result = await put(store, b"new")
    expect("what was swept", [gone.ref for gone in result.swept], [young.ref])
    expect("what stayed", await listed(store), [result.meta.ref, old.ref])


async def _budgets_are_per_scope(trial: Trial) -> None:
    store = await trial.store(max_count=1, max_bytes=10)
    elsewhere = Scope(conversation="elsewhere")
    mine = (await put(store, b"0123456789")).meta
    theirs = await put(store, b"0123456789", scope=elsewhere)
    expect("what was swept", theirs.swept, ())
    await read(store, mine.ref)
    await read(store, theirs.meta.ref, scope=elsewhere)


async def _put_forces_out_no_more(trial: Trial) -> None:
    store = await trial.store(max_count=3, max_bytes=20)
    brief = (await put(store, b"brief", expires_at=trial.clock.now + timedelta(seconds=5))).meta
    for data in (b"0123456789", b"9876543210"):
        await store.delete(HOME, (await put(store, data)).meta.ref)
    trial.clock.advance(1)
    kept = (await put(store, b"kept")).meta
    trial.clock.advance(10)
    expect("swept while there is room", (await put(store, b"fits")).swept, ())
    expect("swept by a second put, which takes no room", (await put(store, b"kept")).swept, ())
    result = await put(store, b"forced")
    expect("swept when there is none", result.swept, (Swept(brief.ref, "test/item", 5, "ttl"),))
    await read(store, kept.ref)


async def _sweep(trial: Trial) -> None:
    store = await trial.store(ttl=10)
    elsewhere = Scope(conversation="elsewhere")
    mine = Swept((await put(store)).meta.ref, "test/item", 7, "ttl")
    theirs = Swept((await put(store, b"their own", scope=elsewhere)).meta.ref, "test/item", 9, "ttl")
    expect("sweep of what is young", await store.sweep(), ())
    trial.clock.advance(100)
    young = (await put(store, b"young")).meta
    for _ in range(2):
        expect("dry run", set(await store.sweep(dry_run=True)), {mine, theirs})
    expect("sweep of one scope", await store.sweep(HOME), (mine,))
    expect("sweep of it again", await store.sweep(HOME), ())
    expect("sweep of all", await store.sweep(), (theirs,))
    expect("sweep of all again", await store.sweep(), ())
    await read(store, young.ref)


def _left(trial: Trial, expires_at: datetime) -> float:
    return (expires_at - trial.clock.now).total_seconds()


LIFETIME_CASES = (
    Case(
        "expiry-stated",
        "The expiry is on the meta when it is made, is never later than the ttl, and is kept.",
        _expiry_stated,
    ),
    Case("reads-extend-nothing", "The ttl runs from the last put, whatever was read since.", _never_extended_by_reads),
    Case("puts-refresh", "A second put makes the artifact young, and a sweep spares it.", _refreshed_by_puts),
    Case("expiry-only-grows", "A second put can only extend an expiry; never is the longest.", _only_grows),
    Case("expired-is-gone", "What has expired is absent for a put, too: it is created anew.", _expired_is_gone),
    Case("count-budget", "A count budget holds after every put, and every eviction is reported.", _count_budget),
    Case("bytes-budget", "A byte budget holds after every put, and every eviction is reported.", _bytes_budget),
    Case("oldest-put-leaves", "Evictions go by the last put, and not by reads.", _oldest_put_leaves),
    Case("budget-per-scope", "One scope's puts evict nothing of another's.", _budgets_are_per_scope),
    Case(
        "no-more-than-forced",
        "A put removes only what a budget forces out, expired artifacts first.",
        _put_forces_out_no_more,
    ),
    Case("sweep", "A sweep removes what has expired, says so, and a dry run only says so.", _sweep),
)
