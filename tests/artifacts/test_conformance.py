"""Both stores pass the battery that is shipped, on both event loops; and the battery can tell a broken store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

from coatcheck.artifacts.directory import DirectoryStore
from coatcheck.artifacts.memory import MemoryStore
from coatcheck.artifacts.meta import Artifact, Page, PutResult, Swept
from coatcheck.artifacts.port import DEFAULT_LIMIT, ArtifactStore
from coatcheck.errors import CoatcheckError, ConfigurationError, UnknownParent
from coatcheck.scope import Scope
from coatcheck.testing import CASES, FaultyStore, MakeStore, check_store, fail, hang
from tests.artifacts._broken import HOOKS, Broken, corrupt

pytestmark = pytest.mark.anyio


async def test_the_memory_store_keeps_every_law_that_can_be_tried_in_one_process() -> None:
    report = await check_store(MemoryStore)
    assert report.ok, str(report)
    assert {result.id for result in report.results if result.verdict == "not-applicable"} == {
        "verified-get",
        "damaged-payload",
        "lost-payload",
        "another-process",
        "not-remembered",
        "open-damaged",
        "open-resized",
        "open-lost",
    }


async def test_the_memory_store_keeps_every_law() -> None:
    report = await check_store(MemoryStore, **HOOKS)
    assert report.ok, str(report)
    assert report.counts["passed"] == len(CASES)


async def test_the_directory_store_keeps_every_law(tmp_path: Path) -> None:
    numbers = count()
    where: dict[int, Path] = {}

    def at(path: Path, **options: Any) -> DirectoryStore:
        store = DirectoryStore(path, **options)
        where[id(store)] = path
        stores.append(store)
        return store

    stores: list[ArtifactStore] = []  # kept, so that no id is used twice

    async def payload(store: ArtifactStore, ref: str) -> anyio.Path:
        [found] = [path async for path in anyio.Path(where[id(store)]).glob(f"*/*/*/*/{ref}/data")]
        return found

    async def corrupt(store: ArtifactStore, scope: Scope, ref: str) -> None:
        path = await payload(store, ref)
        await path.write_bytes((await path.read_bytes())[::-1])

    async def overwrite(store: ArtifactStore, scope: Scope, ref: str, data: bytes) -> None:
        await (await payload(store, ref)).write_bytes(data)

    async def unlink(store: ArtifactStore, scope: Scope, ref: str) -> None:
        await (await payload(store, ref)).unlink()

    report = await check_store(
        lambda **options: at(tmp_path / str(next(numbers)), **options),
        corrupt=corrupt,
        unlink=unlink,
        overwrite=overwrite,
        reopen=lambda store: at(where[id(store)], clock=clock_of(store)),
    )
    assert report.ok, str(report)
    assert report.counts["passed"] == len(CASES)


def clock_of(store: ArtifactStore) -> Callable[[], datetime]:
    assert isinstance(store, DirectoryStore)
    return store._clock


async def test_the_store_that_the_broken_ones_are_made_of_is_sound() -> None:
    report = await check_store(Broken)
    assert report.ok, str(report)


class ForgetsTenants(Broken):
    async def put(self, scope: Scope, data: bytes, **words: Any) -> PutResult:
        return await self.inner.put(Scope(conversation=scope.conversation), data, **words)

    async def get(self, scope: Scope, ref: str) -> Artifact | None:
        return await self.inner.get(Scope(conversation=scope.conversation), ref)


class TakesAnyScope(Broken):
    async def put(self, scope: Scope, data: bytes, **words: Any) -> PutResult:
        taken = scope if isinstance(scope, Scope) else Scope(conversation=repr(scope))
        return await self.inner.put(taken, data, **words)


class FoldsCase(Broken):
    async def put(self, scope: Scope, data: bytes, **words: Any) -> PutResult:
        return await self.inner.put(folded(scope), data, **words)

    async def get(self, scope: Scope, ref: str) -> Artifact | None:
        return await self.inner.get(folded(scope), ref)

    async def list(self, scope: Scope, **words: Any) -> Page:
        return await self.inner.list(folded(scope), **words)


def folded(scope: Scope) -> Scope:
    fields = (scope.tenant, scope.principal, scope.conversation)
    tenant, principal, conversation = (field.lower() if field is not None else None for field in fields)
    return Scope(tenant=tenant, principal=principal, conversation=conversation or "")


class RaisesOnMalformedRefs(Broken):
    async def get(self, scope: Scope, ref: str) -> Artifact | None:
        if not str(ref).startswith("art_"):
            raise CoatcheckError("that is no ref")
        return await self.inner.get(scope, ref)


class SkipsWhatIsThere(Broken):
    """The classic of content-addressed stores: the second put is skipped, and does not refresh (`cases.md` D3)."""

    async def put(self, scope: Scope, data: bytes, **words: Any) -> PutResult:
        before = {meta.digest: meta for meta in (await self.inner.list(scope, limit=1000)).artifacts}
        trial = await MemoryStore().put(scope, data, **{**words, "parents": (), "expires_at": None})
        if (meta := before.get(trial.meta.digest)) is not None and meta.ref == trial.meta.ref:
            return PutResult(meta, created=False)
        return await self.inner.put(scope, data, **words)


class ReadsExtend(Broken):
    async def get(self, scope: Scope, ref: str) -> Artifact | None:
        artifact = await self.inner.get(scope, ref)
        if artifact is not None:
            await self.inner.put(scope, artifact.data, kind=artifact.meta.kind, media_type=artifact.meta.media_type)
        return artifact


class ForgetsEvictions(Broken):
    async def put(self, scope: Scope, data: bytes, **words: Any) -> PutResult:
        result = await self.inner.put(scope, data, **words)
        return PutResult(result.meta, result.created)


class ListsOldestFirst(Broken):
    async def list(self, scope: Scope, *, cursor: str | None = None, limit: int = DEFAULT_LIMIT) -> Page:
        page = await self.inner.list(scope, cursor=cursor, limit=limit)
        return Page(page.artifacts[::-1], page.cursor)


class AlwaysHasAnotherPage(Broken):
    async def list(self, scope: Scope, *, cursor: str | None = None, limit: int = DEFAULT_LIMIT) -> Page:
        page = await self.inner.list(scope, cursor=cursor, limit=limit)
        return Page(page.artifacts, page.cursor or "0." + "art_" + "0" * 32)


class TrustsParents(Broken):
    async def put(self, scope: Scope, data: bytes, *, parents: Sequence[str] = (), **words: Any) -> PutResult:
        try:
            return await self.inner.put(scope, data, parents=parents, **words)
        except UnknownParent:
            return await self.inner.put(scope, data, **words)


class DryRunRemoves(Broken):
    async def sweep(self, scope: Scope | None = None, *, dry_run: bool = False) -> tuple[Swept, ...]:
        return await self.inner.sweep(scope)


class TellsSecrets(Broken):
    async def put(self, scope: Scope, data: bytes, **words: Any) -> PutResult:
        try:
            return await self.inner.put(scope, data, **words)
        except CoatcheckError as error:
            raise type(error)(f"{scope.tenant}: {error}") from error


class LosesTheLastByte(Broken):
    async def get(self, scope: Scope, ref: str) -> Artifact | None:
        artifact = await self.inner.get(scope, ref)
        return artifact and Artifact(artifact.meta, artifact.data[:-1])


class CreatesTwice(Broken):
    async def put(self, scope: Scope, data: bytes, **words: Any) -> PutResult:
        result = await self.inner.put(scope, data, **words)
        return PutResult(result.meta, created=True, swept=result.swept)


class KeepsTheLastWords(Broken):
    async def put(self, scope: Scope, data: bytes, **words: Any) -> PutResult:
        result = await self.inner.put(scope, data, **words)
        if not result.created:
            await self.inner.delete(scope, result.meta.ref)
            return PutResult((await self.inner.put(scope, data, **words)).meta, created=False)
        return result


@pytest.mark.parametrize(
    ("make", "caught"),
    [
        (ForgetsTenants, {"ref-alone", "confusable-scopes", "own-table"}),
        (TakesAnyScope, {"not-a-scope"}),
        (FoldsCase, {"confusable-scopes"}),
        (RaisesOnMalformedRefs, {"one-absence"}),
        (SkipsWhatIsThere, {"puts-refresh", "expiry-only-grows", "oldest-put-leaves"}),
        (ReadsExtend, {"reads-extend-nothing", "oldest-put-leaves"}),
        (ForgetsEvictions, {"count-budget", "bytes-budget", "no-more-than-forced", "many-keys-at-once"}),
        (ListsOldestFirst, {"list-order", "list-pages"}),
        (AlwaysHasAnotherPage, {"list-pages"}),
        (TrustsParents, {"parents", "ref-alone", "secrets"}),
        (DryRunRemoves, {"sweep"}),
        (TellsSecrets, {"secrets"}),
        (LosesTheLastByte, {"put-head-get", "one-key-at-once", "cancelled-put"}),
        (CreatesTwice, {"same-content", "puts-refresh", "one-key-at-once"}),
        (KeepsTheLastWords, {"same-content", "puts-refresh", "expiry-only-grows"}),
    ],
)
async def test_a_store_that_breaks_a_law_is_caught_by_the_case_of_that_law(make: MakeStore, caught: set[str]) -> None:
    report = await check_store(make, only=caught)
    assert {result.id for result in report.failures} == caught, str(report)
    assert all(result.detail for result in report.failures)


async def test_a_second_put_that_leaves_a_damaged_payload_where_it_is_is_caught() -> None:
    sound = await check_store(MemoryStore, corrupt=corrupt, only={"damaged-payload", "verified-get"})
    assert sound.counts["passed"] == 2, str(sound)
    broken = await check_store(SkipsWhatIsThere, corrupt=corrupt, only={"damaged-payload"})
    assert [result.id for result in broken.failures] == ["damaged-payload"]


async def test_a_store_that_raises_where_it_should_answer_fails_with_what_it_raised() -> None:
    report = await check_store(lambda **options: FaultyStore(MemoryStore(**options), get=fail(OSError("no disk"))))
    failed = {result.id: result.detail for result in report.failures}
    assert failed["put-head-get"] == "OSError: no disk"


async def test_a_store_that_hangs_fails_within_the_time_given() -> None:
    report = await check_store(
        lambda **options: FaultyStore(MemoryStore(**options), put=hang()), only={"delete"}, timeout=0.05
    )
    [result] = report.results
    assert (result.verdict, result.detail) == ("failed", "it did not end within 0.05 seconds")


async def test_a_failure_that_was_declared_is_run_and_reported_as_declared() -> None:
    report = await check_store(DryRunRemoves, declared={"sweep": "our server has no dry run"})
    assert report.ok
    assert report.counts == {"passed": 58, "not-applicable": 8, "declared": 1, "failed": 0}
    [result] = [result for result in report.results if result.verdict == "declared"]
    assert (result.id, result.detail, result.stale) == ("sweep", "our server has no dry run", False)


async def test_a_declaration_of_what_passes_is_stale_and_one_of_what_cannot_be_tried_is_not() -> None:
    report = await check_store(MemoryStore, declared={"sweep": "once", "verified-get": "never tried"})
    assert [result.id for result in report.stale] == ["sweep"]
    assert report.ok
    assert "take the declaration back" in str(report)


@pytest.mark.parametrize("words", [{"declared": {"swept": "why"}}, {"only": ["swept"]}])
async def test_a_case_that_does_not_exist_is_refused_by_name(words: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="no such case: swept; there are "):
        await check_store(MemoryStore, **words)


async def test_a_report_is_readable() -> None:
    report = await check_store(ForgetsEvictions, only=["count-budget", "delete", "verified-get"])
    text = str(report)
    assert text.startswith("1 passed, 1 not-applicable, 0 declared, 1 failed\n")
    for result in report.results:
        assert f"{result.verdict:<14}  {result.id}" in text
        assert result.law in text
        assert result.detail in text


def test_every_case_has_an_id_of_its_own_and_states_its_law_in_one_sentence() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
    for case in CASES:
        assert case.law.endswith(".")
        assert case.law.count(".") == 1
