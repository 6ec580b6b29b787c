"""Two processes of the agent server on one bucket behind a round robin, and what becomes of them when S3 is away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.deploy import _replicas as replicas
from tests.deploy._agents import NEW, Agent, Client, running
from tests.s3._servers import Place, Server, new_place, start_seaweed

PlaceOn = Callable[[Server], Place]


def store_at(place: Place, **settings: str) -> str:
    """The URL of a store at a place; its credentials are in the environment."""
    options = {"endpoint_url": place.server.url, "region": place.server.region, **settings}
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items())
    return f"s3://{place.bucket}/{place.prefix}?{query}"


@pytest.fixture(scope="module")
def two(seaweed: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, list[Agent]]]:
    place = new_place(seaweed)
    with running(store_at(place), tmp_path_factory.mktemp("agents"), 2, seaweed.env()) as found:
        yield found


@pytest.mark.parametrize(
    "law",
    [
        replicas.each_serves_the_others_refs,
        replicas.each_resumes_the_others_pending_calls,
        replicas.an_approval_is_used_once_among_all,
    ],
)
def test_of_two_processes_on_one_bucket(two: tuple[Client, list[Agent]], law: Callable[[Client], None]) -> None:
    client, _ = two
    client.session = NEW
    law(client)


def test_e4_of_two_processes_on_one_bucket_a_conversation_has_its_own(two: tuple[Client, list[Agent]]) -> None:
    replicas.a_conversation_has_its_own(*two)


def test_nothing_acknowledged_is_lost_with_one_of_two_processes_on_one_bucket(
    seaweed: Server, place_on: PlaceOn, tmp_path: Path
) -> None:
    with running(store_at(place_on(seaweed)), tmp_path, 2, seaweed.env()) as found:
        replicas.nothing_acknowledged_is_lost_with_a_process(*found)


def test_a_server_whose_bucket_is_away_is_healthy_and_not_ready_and_is_ready_again(tmp_path: Path) -> None:
    with start_seaweed() as server:
        url = store_at(new_place(server), attempts="1")
        with running(url, tmp_path, environment=server.env()) as (client, _):
            assert client.get("/readyz").status_code == 200
            server.kill()
            assert client.get("/healthz").status_code == 200
            outcome = client.call("sales_report", region="eu", rows=2000)
            assert (outcome["outcome"], outcome["executed"]) == ("Truncated", True)
            wait_for(client, 503)
            server.start()
            wait_for(client, 200)
            assert client.call("sales_report", region="eu", rows=2000)["outcome"] == "Placed"
            server.freeze()  # it takes connections, and answers nothing
            wait_for(client, 503)
            assert client.get("/healthz").status_code == 200
            server.thaw()
            wait_for(client, 200)


def wait_for(client: Client, status: int) -> None:
    """The test's own timeout is the limit; the server keeps an answer for a second."""
    pause = threading.Event()
    while client.get("/readyz").status_code != status:
        pause.wait(0.1)
