"""The laws of the store port as a test that anyone can run on their own store, in any test framework or none.

    report = await check_store(make)
    assert report.ok, str(report)

``make(**options)`` makes a new, empty store. The cases are in the modules
``coatcheck.testing.cases_*``; they run on asyncio and on trio.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Literal

import anyio
import msgspec

from coatcheck.errors import ConfigurationError
from coatcheck.testing.cases_access import ACCESS_CASES
from coatcheck.testing.cases_content import CONTENT_CASES
from coatcheck.testing.cases_lifetime import LIFETIME_CASES
from coatcheck.testing.cases_races import RACE_CASES
from coatcheck.testing.cases_readers import READER_CASES
from coatcheck.testing.cases_slow_streams import SLOW_STREAM_CASES
from coatcheck.testing.cases_streams import STREAM_CASES
from coatcheck.testing.trial import Case, Hook, MakeStore, NotApplicable, Overwrite, Reopen, Trial

__all__ = ["CASES", "CaseResult", "Report", "Verdict", "check_store"]

Verdict = Literal["passed", "not-applicable", "declared", "failed"]
_VERDICTS: tuple[Verdict, ...] = ("passed", "not-applicable", "declared", "failed")

CASES: tuple[Case, ...] = (
    *CONTENT_CASES,
    *ACCESS_CASES,
    *LIFETIME_CASES,
    *RACE_CASES,
    *STREAM_CASES,
    *SLOW_STREAM_CASES,
    *READER_CASES,
)
"""Every case, in the order in which they run."""


class CaseResult(msgspec.Struct, frozen=True):
    """What one case came to.

    Attributes:
        id, law: the case's.
        verdict: ``passed``; ``not-applicable``: this store offers no way to try it; ``declared``: it was declared
            to fail beforehand; ``failed``.
        detail: why, where it did not pass.
        stale: it was declared to fail, and passed.
    """

    id: str
    law: str
    verdict: Verdict
    detail: str = ""
    stale: bool = False


class Report(msgspec.Struct, frozen=True):
    """What the whole battery came to. ``str(report)`` is for people."""

    results: tuple[CaseResult, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many cases had each verdict."""
        counted = Counter(result.verdict for result in self.results)
        return {verdict: counted[verdict] for verdict in _VERDICTS}

    @property
    def failures(self) -> tuple[CaseResult, ...]:
        """The cases that failed."""
        return tuple(result for result in self.results if result.verdict == "failed")

    @property
    def stale(self) -> tuple[CaseResult, ...]:
        """The cases whose declaration can go, because they pass."""
        return tuple(result for result in self.results if result.stale)

    def __str__(self) -> str:
        width = max((len(result.id) for result in self.results), default=0)
        lines = [", ".join(f"{count} {verdict}" for verdict, count in self.counts.items())]
        for result in self.results:
            lines.append(f"  {result.verdict:<14}  {result.id:<{width}}  {result.law}")
            if result.stale:
                lines.append(f"  {'':<14}  {'':<{width}}  ! it passes: take the declaration back")
            if result.detail:
                lines.append(f"  {'':<14}  {'':<{width}}  {'!' if result.verdict == 'failed' else '-'} {result.detail}")
        return "\n".join(lines)


async def check_store(
    make: MakeStore,
    *,
    declared: Mapping[str, str] | None = None,
    only: Collection[str] | None = None,
    corrupt: Hook | None = None,
    unlink: Hook | None = None,
    overwrite: Overwrite | None = None,
    reopen: Reopen | None = None,
    timeout: float = 60.0,
) -> Report:
    """Hold a store to the laws of the port.

    Args:
        make: called with some of ``clock``, ``ttl``, ``max_bytes`` and ``max_count``; returns a new, empty store that
            is not open. Every case has its own, opened and closed by the battery.
        declared: cases that this store is known to fail, by id, each with the reason. They are run all the same.
        only: the ids of the cases to run; all of them, if not given.
        corrupt: changes the stored payload of one artifact behind the store's back.
        unlink: removes the stored payload of one artifact behind the store's back.
        overwrite: puts other bytes in the place of the stored payload of one artifact behind the store's back.
        reopen: makes a second store over the same data.
        timeout: what one case may take, in seconds; a store that hangs fails.

    Returns:
        One result a case. A case that needs a hook that was not given is not applicable, and says so.

    Raises:
        ConfigurationError: ``declared`` or ``only`` names a case that does not exist.
    """
    declared = declared or {}
    known = {case.id for case in CASES}
    unknown = sorted({*declared, *(only or ())} - known)
    if unknown:
        raise ConfigurationError(f"no such case: {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    results: list[CaseResult] = []
    for case in CASES:
        if only is None or case.id in only:
            trial = Trial(make, corrupt=corrupt, unlink=unlink, overwrite=overwrite, reopen=reopen)
            verdict, detail = await _try(case, trial, timeout)
            if case.id in declared and verdict in ("passed", "failed"):
                stale = verdict == "passed"
                results.append(CaseResult(case.id, case.law, "declared", declared[case.id], stale))
            else:
                results.append(CaseResult(case.id, case.law, verdict, detail))
    return Report(tuple(results))


async def _try(case: Case, trial: Trial, timeout: float) -> tuple[Verdict, str]:
    with anyio.move_on_after(timeout) as limit:
        try:
            async with trial.running():
                await case.run(trial)
        except NotApplicable as reason:
            return "not-applicable", str(reason)
        except Exception as error:  # noqa: BLE001 - a store may break a law in any way
            return "failed", _told(error)
    if limit.cancelled_caught:
        return "failed", f"it did not end within {timeout:g} seconds"
    return "passed", ""


def _told(error: BaseException) -> str:
    """What happened, without the wrappers of task groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    name = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return f"{name}{error}"
