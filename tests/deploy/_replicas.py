"""What two replicas of the agent server promise, whatever store they share."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from signal import SIGKILL

from tests.deploy._agents import BOB, NEW, Agent, Client

ROWS = 2_000


def each_serves_the_others_refs(client: Client) -> None:
    """Made by one; headed, read and listed at the other, and given to a reader there."""
    for _ in range(2):  # once from either
        outcome = client.call("sales_report", region="eu", rows=ROWS)
        assert outcome["outcome"] == "Placed"
        (ref,) = outcome["refs"]
        whole = client.get(f"/artifacts/{ref}")
        assert len(whole.json()) == ROWS
        assert client.get(f"/artifacts/{ref}/meta").json()["bytes"] == len(whole.content)
        found = client.call("search_artifact", ref=ref, pattern='"order":1999')
        assert found["outcome"] == "Inline"
        assert "1999" in found["text"]
        assert ref in client.get("/artifacts").text
        client.session = NEW
        client.get("/healthz")  # the next round begins at the other one


def each_resumes_the_others_pending_calls(client: Client) -> None:
    """Asked at one, answered at the other; and the conversation goes on."""
    for order in range(2):
        asked = client.call("refund", order=order, amount=250)
        assert (asked["outcome"], asked["executed"]) == ("Pending", False)
        assert asked["question"] == "May this refund be paid?"
        assert asked["detail"] == {"order": order, "amount": 250}
        done = client.resume(asked["pending"], note="paid twice by mistake")
        assert (done["outcome"], done["executed"]) == ("Inline", True)
        assert json.loads(done["text"]) == {"order": order, "refunded": 250.0}
        client.get("/healthz")


def an_approval_is_used_once_among_all(client: Client) -> None:
    """Many answers at once to one question, at both: one runs, and all others are told that it was used."""
    pending = client.call("refund", order=1, amount=1000)["pending"]

    def answer(_: int) -> dict[str, object]:
        outcome: dict[str, object] = client.post("/resume", {"pending": pending, "approved": True}).json()["outcome"]
        return outcome

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(answer, range(16)))
    assert [outcome["executed"] for outcome in outcomes].count(True) == 1
    assert {str(outcome["text"]) for outcome in outcomes if not outcome["executed"]} == {
        "refund did not run: the approval was used already."
    }


def nothing_acknowledged_is_lost_with_a_process(client: Client, agents: list[Agent]) -> None:
    """One of two is killed while both make reports: every ref that a client was told is read at the other."""
    first, second = agents
    alone = Client(first)
    told: list[tuple[str, int]] = []

    def ask(number: int) -> None:
        rows = ROWS + number
        if number == 12:
            first.send(SIGKILL)
        try:
            outcome = alone.post("/calls", {"name": "sales_report", "arguments": {"region": "eu", "rows": rows}})
        except Exception:  # noqa: BLE001 - the process is gone, or goes while it answers
            return
        told.append((outcome.json()["outcome"]["refs"][0], rows))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(20)))
    alone.close()
    assert first.ended() == -SIGKILL
    left = Client(second)
    assert len(told) >= 8
    for ref, rows in told:
        assert len(left.get(f"/artifacts/{ref}").json()) == rows
    assert left.call("sales_report", region="eu", rows=ROWS)["outcome"] == "Placed"
    left.close()


def a_conversation_has_its_own(client: Client, agents: list[Agent]) -> None:
    """What is another conversation's is as absent as what nobody has, and no word of a request changes that."""
    ref = client.call("sales_report", region="us", rows=ROWS)["refs"][0]
    pending = client.call("refund", order=3, amount=300)["pending"]
    other = Client(*agents, token=BOB)
    missing = "art_" + "0123456789abcdef" * 2
    for path in (f"/artifacts/{ref}", f"/artifacts/{ref}?conversation=one", f"/artifacts/acme/ann/one/{ref}"):
        foreign, nobodys = other.get(path), other.get(f"/artifacts/{missing}")
        assert foreign.status_code == nobodys.status_code == 404
        assert foreign.content == nobodys.content
    denied = other.resume(pending)
    assert (denied["outcome"], denied["executed"]) == ("Denied", False)
    other.close()
    assert client.resume(pending)["executed"]
