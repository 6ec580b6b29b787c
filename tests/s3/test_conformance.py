"""The S3 store keeps every law of the port, on every server: also on those that ignore conditions and checksums.

A case waits for a server most of its time, so the cases of one group run at once, each in a store of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import anyio
import pytest

from coatcheck.testing import CASES, Case, Report
from coatcheck.testing.cases_access import ACCESS_CASES
from coatcheck.testing.cases_content import CONTENT_CASES
from coatcheck.testing.cases_lifetime import LIFETIME_CASES
from coatcheck.testing.cases_races import RACE_CASES
from coatcheck.testing.cases_readers import READER_CASES
from coatcheck.testing.cases_slow_streams import SLOW_STREAM_CASES
from coatcheck.testing.cases_streams import STREAM_CASES
from coatcheck.testing.conformance import CaseResult
from tests.s3._battery import run_battery
from tests.s3._servers import Place, Server

pytestmark = pytest.mark.anyio

PlaceOn = Callable[[Server], Place]

GROUPS: dict[str, tuple[Case, ...]] = {
    "content": CONTENT_CASES,
    "access": ACCESS_CASES,
    "lifetime": LIFETIME_CASES,
    "races": RACE_CASES,
    "streams": STREAM_CASES,
    "slow-streams": SLOW_STREAM_CASES,
    "readers": READER_CASES,
}

LANES = [
    pytest.param("seaweed", "asyncio", id="seaweed-asyncio"),
    pytest.param("seaweed", "trio", id="seaweed-trio", marks=pytest.mark.slow),
    pytest.param("moto", "asyncio", id="moto-asyncio", marks=pytest.mark.slow),
    pytest.param("ceph", "asyncio", id="ceph-asyncio", marks=pytest.mark.slow),
    pytest.param("juicefs", "asyncio", id="juicefs-asyncio", marks=pytest.mark.slow),
    pytest.param("tls", "asyncio", id="tls-asyncio", marks=pytest.mark.slow),
    pytest.param("tls", "trio", id="tls-trio", marks=pytest.mark.slow),
]


async def reported(place: Place, cases: Iterable[Case]) -> Report:
    """What these cases came to, run at once."""
    results: list[CaseResult] = []

    async def run(case: Case) -> None:
        prefix = f"{place.prefix}/{case.id}"
        results.extend((await run_battery(Place(place.server, place.bucket, prefix), only=[case.id])).results)

    async with anyio.create_task_group() as group:
        for case in cases:
            group.start_soon(run, case)
    return Report(tuple(results))


def test_every_case_of_the_battery_is_in_one_group() -> None:
    assert sorted(case.id for group in GROUPS.values() for case in group) == sorted(case.id for case in CASES)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("server", "anyio_backend"), LANES, indirect=["server"])
async def test_the_s3_store_keeps_every_law(server: Server, place_on: PlaceOn, group: str) -> None:
    report = await reported(place_on(server), GROUPS[group])
    assert report.ok, str(report)
    assert report.counts["passed"] == len(GROUPS[group]), str(report)
