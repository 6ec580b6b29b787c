"""The agent server of ``deploy/server``: real processes, one or two on a directory, and what they promise."""

from __future__ import annotations

import base64
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml  # type: ignore[import-untyped]  # it says nothing of its types

from tests.deploy import _replicas as replicas
from tests.deploy._agents import ANN, BOB, NEW, SECRET, SERVER, Agent, Client, running

MEGABYTE = 1 << 20


def store_in(folder: Path) -> str:
    return f"file://{folder / 'store'}?ttl=1d"


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, list[Agent]]]:
    """One server, for all tests that leave it as it is."""
    folder = tmp_path_factory.mktemp("one")
    with running(store_in(folder), folder) as found:
        yield found


@pytest.fixture
def client(one: tuple[Client, list[Agent]]) -> Client:
    client, _ = one
    client.session = NEW
    return client


@pytest.fixture
def agent(one: tuple[Client, list[Agent]]) -> Agent:
    return one[1][0]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Client, list[Agent]]]:
    """Two servers on one store."""
    with running(store_in(tmp_path), tmp_path, 2) as found:
        yield found


# --- what it answers ---


def test_tools_are_listed_with_their_schemas(client: Client) -> None:
    tools = {tool["name"]: tool for tool in client.get("/tools").json()["tools"]}
    assert {"sales_report", "refund", "rebuild_index", "read_artifact", "search_artifact"} <= tools.keys()
    assert tools["refund"]["parameters"]["required"] == ["order", "amount"]
    assert "ctx" not in tools["rebuild_index"]["parameters"]["properties"]


def test_a_call_is_answered_with_what_the_model_reads(client: Client) -> None:
    outcome = client.call("refund", order=7, amount=20)
    assert (outcome["outcome"], outcome["executed"], outcome["error"]) == ("Inline", True, False)
    assert json.loads(outcome["text"]) == {"order": 7, "refunded": 20.0}


def test_arguments_may_be_the_text_that_the_model_spoke(client: Client) -> None:
    body = {"name": "refund", "arguments": '{"order": 7, "amount": 20}', "call_id": "call_7"}
    outcome = client.answer("/calls", body)["outcome"]
    assert (outcome["outcome"], outcome["call_id"]) == ("Inline", "call_7")


@pytest.mark.parametrize("arguments", [{"order": "x"}, "{", "[1]", {"order": 1, "amount": {"much": 1}}])
def test_a_call_that_is_wrong_is_an_outcome_that_teaches(client: Client, arguments: object) -> None:
    outcome = client.answer("/calls", {"name": "refund", "arguments": arguments})["outcome"]
    assert outcome["executed"] is False
    assert outcome["outcome"] in ("Failed", "Pending")


def test_a_tool_that_is_unknown_is_an_outcome(client: Client) -> None:
    outcome = client.call("sales_reprot")
    assert (outcome["outcome"], outcome["executed"]) == ("Failed", False)
    assert "sales_reprot" in outcome["text"]


def test_a_batch_is_one_turn_and_answered_in_order(client: Client) -> None:
    calls = [
        {"name": "sales_report", "arguments": {"region": "eu"}, "call_id": "a"},
        {"name": "refund", "arguments": {"order": 1, "amount": 500}, "call_id": "b"},
        {"name": "rebuild_index", "arguments": {"shards": 1}, "call_id": "c"},
        {"name": "nothing", "call_id": "d"},
    ]
    outcomes = client.answer("/batches", {"calls": calls})["outcomes"]
    assert [outcome["call_id"] for outcome in outcomes] == ["a", "b", "c", "d"]
    assert [outcome["outcome"] for outcome in outcomes] == ["Placed", "Pending", "Inline", "Failed"]
    done = client.resume(outcomes[1]["pending"])
    assert (done["call_id"], done["executed"]) == ("b", True)


def test_a_person_may_say_no_and_the_ledger_says_who(client: Client, agent: Agent) -> None:
    pending = client.call("refund", order=9, amount=900)["pending"]
    denied = client.resume(pending, approved=False, note="not without a receipt")
    assert (denied["outcome"], denied["executed"]) == ("Denied", False)
    assert "not without a receipt" in denied["text"]
    rows = [json.loads(line.partition("agent.ledger ")[2]) for line in agent.log if "agent.ledger " in line]
    last = rows[-1]
    assert last["scope"] == {"tenant": "acme", "principal": "ann", "conversation": "one"}
    assert last["decision"]["outcome"] == "deny"
    assert "by ann" in last["decision"]["why"]


def test_the_conversation_goes_on_where_the_session_is_sent_back(client: Client) -> None:
    first = client.call("refund", order=11, amount=1)
    again = client.call("refund", order=11, amount=1)
    assert again["text"].startswith(first["text"])
    assert again["text"] != first["text"]  # the model is told that it repeats itself
    client.session = NEW
    assert client.call("refund", order=11, amount=1)["text"] == first["text"]


def test_a_request_without_a_session_stands_alone_and_its_answer_has_none(client: Client) -> None:
    body = {"name": "refund", "arguments": {"order": 12, "amount": 1}}
    answers = [client.post("/calls", body).json() for _ in range(3)]
    assert [list(answer) for answer in answers] == [["outcome"]] * 3
    assert len({answer["outcome"]["text"] for answer in answers}) == 1


def test_progress_comes_while_the_tool_is_at_work_and_the_answer_in_the_end(client: Client) -> None:
    body = {"name": "rebuild_index", "arguments": {"shards": 3}, "call_id": "x"}
    with client.streaming("/calls", body) as events:
        seen = list(events)
    assert [name for name, _ in seen] == ["progress"] * 3 + ["answer"]
    first = {"tool": "rebuild_index", "call_id": "x", "text": "shard 1 of 3", "done": 0, "total": 3}
    assert seen[0][1] == first
    assert seen[-1][1]["outcome"]["text"] == "3 shards rebuilt"


def test_progress_is_told_to_whoever_asked_and_to_nobody_else(client: Client, agent: Agent) -> None:
    def shards(count: int) -> list[Any]:
        other = Client(agent, token=BOB)
        with other.streaming("/calls", {"name": "rebuild_index", "arguments": {"shards": count}}) as events:
            seen = list(events)
        other.close()
        return seen

    with ThreadPoolExecutor(4) as pool:
        for count, seen in zip(range(1, 5), pool.map(shards, range(1, 5)), strict=True):
            told = [data["total"] for name, data in seen if name == "progress"]
            assert told == [count] * count


def test_a_call_goes_on_when_its_client_has_gone(client: Client, agent: Agent) -> None:
    with client.streaming("/calls", {"name": "rebuild_index", "arguments": {"shards": 3}}) as events:
        assert next(events)[0] == "progress"
    assert client.get("/healthz").status_code == 200
    assert agent.process.poll() is None


# --- who asks ---


PATHS = ["/tools", "/calls", "/batches", "/resume", "/artifacts", "/artifacts/art_0", "/nowhere"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "token", [None, "Bearer nobody-0123456789abcdef", f"Basic {ANN}", f"Bearer {ANN}, Bearer {BOB}"]
)
def test_who_is_nobody_is_told_so_before_anything_is_read(agent: Agent, path: str, token: str | None) -> None:
    headers = {} if token is None else {"Authorization": token}
    method = "POST" if path in ("/calls", "/batches", "/resume") else "GET"
    response = httpx2.request(method, agent.url + path, headers=headers, timeout=30)
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert list(response.json()) == ["error"]


def test_a_session_of_another_conversation_or_of_no_server_is_refused(client: Client, agent: Agent) -> None:
    client.call("refund", order=1, amount=1)
    sealed = client.session
    forged = base64.b64encode(base64.b64decode(sealed).replace(b'"one"', b'"two"')).decode()
    other = Client(agent, token=BOB)
    for session in (sealed, forged, "", "no base64!", base64.b64encode(b"{}").decode(), "é"):
        response = other.post("/calls", {"name": "refund", "arguments": {"order": 1, "amount": 1}, "session": session})
        assert response.status_code == 400
        assert "session" in response.json()["error"]
    other.close()


@pytest.mark.parametrize("field", ["conversation", "scope", "tenant", "by"])
def test_no_word_of_a_body_says_whose_call_it_is(client: Client, field: str) -> None:
    response = client.post("/calls", {"name": "refund", "arguments": {}, field: "two"})
    assert response.status_code == 400
    assert field in response.json()["error"]


def test_a_pending_call_that_was_changed_is_denied(client: Client) -> None:
    pending = client.call("refund", order=1, amount=1000)["pending"]
    changed = base64.b64encode(base64.b64decode(pending).replace(b"1000", b"1001")).decode()
    assert changed != pending
    assert client.resume(changed)["outcome"] == "Denied"
    assert client.resume(pending)["executed"]


# --- evil bodies, and slow ones ---


DEEP = b'{"name": "refund", "arguments": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"name": 7}', b'{"name": "x", "arguments": [1]}', b"{}" * 10, DEEP],
    ids=["empty", "cut", "null", "list", "no UTF-8", "wrong type", "no object", "twice", "deep"],
)
@pytest.mark.parametrize("path", ["/calls", "/batches", "/resume"])
def test_a_body_that_is_none_is_refused_in_one_sentence(client: Client, path: str, body: bytes) -> None:
    response = client.post(path, body)
    assert response.status_code == 400
    assert list(response.json()) == ["error"]
    assert len(response.text) < 400
    assert client.get("/healthz").status_code == 200


def test_a_batch_is_bounded(client: Client) -> None:
    assert client.post("/batches", {"calls": []}).status_code == 400
    assert client.post("/batches", {"calls": [{"name": "nothing"}] * 65}).status_code == 400
    assert client.post("/batches", {"calls": [{"name": "nothing"}] * 64}).status_code == 200


def test_a_body_that_is_too_large_is_refused_whether_or_not_it_says_so(client: Client) -> None:
    assert client.post("/calls", b" " * (MEGABYTE + 1)).status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(17):
            yield b" " * (MEGABYTE // 16)

    try:
        response = client._http.post(next(client.urls) + "/calls", content=pieces())
    except httpx2.TransportError:
        pass  # it was told, and the connection closed, before it had sent everything
    else:
        assert response.status_code == 413
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/calls"), ("PUT", "/resume"), ("POST", "/tools"), ("DELETE", "/batches")]
)
def test_another_method_is_refused(client: Client, method: str, path: str) -> None:
    response = client._http.request(method, next(client.urls) + path)
    assert response.status_code == 405
    assert response.headers["allow"] in ("GET", "POST")


def received(connection: socket.socket) -> bytes:
    data = b""
    while chunk := connection.recv(1 << 16):
        data += chunk
    return data


def test_clients_that_send_nothing_more_keep_nobody_waiting_and_are_given_up(tmp_path: Path) -> None:
    head = f"POST /calls HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ANN}\r\nContent-Length: 100\r\n\r\n"
    with running(store_in(tmp_path), tmp_path, changed="server.BODY_SECONDS = 1.0") as (client, (agent,)):
        connections = [agent.dial() for _ in range(30)]
        for connection in connections:
            connection.sendall(head.encode() + b'{"name"')
        assert client.call("refund", order=1, amount=1)["outcome"] == "Inline"
        for connection in connections:
            with connection:
                assert received(connection).startswith(b"HTTP/1.1 408")


# A tool that tells more than a client can take.
FLOOD = """
import anyio, coatcheck as cc

@cc.tool
async def flood(ctx: cc.ToolContext, events: int) -> str:
    for number in range(events):
        ctx.progress("x" * 500, done=number)
        if number % 20 == 0:
            await anyio.sleep(0)
    server._log.info("flooded")
    return "done"

server.refund = flood
server.WRITE_SECONDS = 0.5
"""


def test_a_client_that_is_slower_than_the_events_has_the_answer_all_the_same(tmp_path: Path) -> None:
    with running(store_in(tmp_path), tmp_path, changed=FLOOD) as (client, _):
        with client.streaming("/calls", {"name": "flood", "arguments": {"events": 20_000}}) as events:
            seen = list(events)
        assert 1 <= len(seen) < 20_000
        told = [data["done"] for name, data in seen if name == "progress"]
        assert told == sorted(told)
        assert seen[-1][1]["outcome"]["text"] == "done"


def test_a_client_that_takes_nothing_is_cut_off_and_its_call_comes_to_its_end(tmp_path: Path) -> None:
    body = b'{"name": "flood", "arguments": {"events": 500000}}'
    head = f"POST /calls HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ANN}\r\nAccept: text/event-stream\r\n"
    with (
        running(store_in(tmp_path), tmp_path, changed=FLOOD) as (client, (agent,)),
        agent.dial(receive_buffer=4096) as connection,
    ):
        connection.sendall(head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        agent.says("flooded")
        agent.says("its client took nothing")
        answer = received(connection)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"event: answer" not in answer
        assert client.get("/healthz").status_code == 200
        assert "Traceback" not in "".join(agent.log)


# --- replicas ---


@pytest.mark.parametrize(
    "law",
    [
        replicas.each_serves_the_others_refs,
        replicas.each_resumes_the_others_pending_calls,
        replicas.an_approval_is_used_once_among_all,
    ],
)
def test_of_two_processes_on_one_store(two: tuple[Client, list[Agent]], law: Callable[[Client], None]) -> None:
    law(two[0])


def test_e4_of_two_processes_a_conversation_has_its_own(two: tuple[Client, list[Agent]]) -> None:
    replicas.a_conversation_has_its_own(*two)


def test_nothing_acknowledged_is_lost_with_one_of_two_processes(two: tuple[Client, list[Agent]]) -> None:
    replicas.nothing_acknowledged_is_lost_with_a_process(*two)


def test_a_replica_with_another_secret_takes_nothing_from_the_first(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    with (
        running(store, tmp_path) as (client, agents),
        running(store, tmp_path, environment={"COATCHECK_SECRET": SECRET[::-1]}) as (_, others),
    ):
        asked = client.call("refund", order=1, amount=1000)
        stranger = Client(*others)
        stranger.session = NEW
        assert stranger.resume(asked["pending"])["outcome"] == "Denied"
        assert stranger.post("/calls", {"name": "nothing", "session": client.session}).status_code == 400
        stranger.close()
        assert client.resume(asked["pending"])["executed"]
        assert len(agents) == 1


# --- health, and the end ---


def test_a_server_is_ready_while_its_store_answers_and_healthy_in_any_case(tmp_path: Path) -> None:
    with running(store_in(tmp_path), tmp_path) as (client, _):
        assert client.get("/readyz").json() == {"status": "ready"}
        place, aside = tmp_path / "store", tmp_path / "aside"
        place.rename(aside)
        place.write_text("no directory")
        wait_for(client, 503)
        assert client.get("/healthz").json() == {"status": "ok"}
        outcome = client.call("sales_report", region="eu", rows=2000)
        assert outcome["executed"]
        assert outcome["outcome"] == "Truncated"  # what cannot be stored is cut, and the model is told
        place.unlink()
        aside.rename(place)
        wait_for(client, 200)
        assert client.call("sales_report", region="eu", rows=2000)["outcome"] == "Placed"


def wait_for(client: Client, status: int) -> None:
    """The test's own timeout is the limit; the server keeps an answer for a second."""
    pause = threading.Event()
    while client.get("/readyz", headers={"Authorization": ""}).status_code != status:
        pause.wait(0.1)


def test_sigterm_lets_calls_come_to_their_end_and_takes_no_new_connection(tmp_path: Path) -> None:
    body = b'{"name": "rebuild_index", "arguments": {"shards": 20}}'
    head = f"POST /calls HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ANN}\r\nContent-Length: {len(body)}\r\n\r\n"
    with running(store_in(tmp_path), tmp_path) as (client, (agent,)), agent.dial() as plain:
        plain.sendall(head.encode() + body)
        with client.streaming("/calls", {"name": "rebuild_index", "arguments": {"shards": 20}}) as events:
            assert next(events)[0] == "progress"
            agent.send(signal.SIGTERM)
            refused, seen = False, []
            for event in events:
                seen.append(event)
                refused = refused or is_refused(agent)
        assert refused
        assert seen[-1][1]["outcome"]["text"] == "20 shards rebuilt"
        assert b"20 shards rebuilt" in received(plain)
        assert agent.ended() == 0
        assert "Traceback" not in "".join(agent.log)


def is_refused(agent: Agent) -> bool:
    try:
        agent.dial().close()
    except ConnectionRefusedError:
        return True
    return False


def test_calls_that_go_on_too_long_are_cut_when_it_is_to_end(tmp_path: Path) -> None:
    with running(store_in(tmp_path), tmp_path, environment={"AGENT_DRAIN": "1"}) as (client, (agent,)):
        with client.streaming("/calls", {"name": "rebuild_index", "arguments": {"shards": 500}}) as events:
            assert next(events)[0] == "progress"
            agent.send(signal.SIGTERM)
            with pytest.raises(httpx2.TransportError):
                list(events)
        assert agent.ended() == 0


# --- how it is set up ---


def started(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SERVER], env=environment, capture_output=True, text=True, timeout=50, check=False
    )


def test_what_is_missing_or_wrong_is_said_at_the_start_and_no_secret_with_it(tmp_path: Path) -> None:
    nothing = started()
    assert nothing.returncode == 1
    assert "COATCHECK_STORE, COATCHECK_SECRET, COATCHECK_TOKEN_FILE" in nothing.stderr
    tokens = tmp_path / "tokens"
    given = {"COATCHECK_STORE": store_in(tmp_path), "COATCHECK_SECRET": SECRET, "COATCHECK_TOKEN_FILE": str(tokens)}
    for text in ("", f"{ANN}\n", f"{ANN} one\n", f"{ANN} a/b/\n", f"{ANN} a/b/c d\n", f"{ANN} a/b/c\n{ANN} a/b/d\n"):
        tokens.write_text(text)
        done = started(**given)
        assert done.returncode == 1
        assert "cannot start" in done.stderr
        assert ANN not in done.stderr
        assert "Traceback" not in done.stderr
    tokens.write_text(f"{ANN} a/b/c\n")
    for name, wrong in (("COATCHECK_SECRET", "short"), ("COATCHECK_STORE", "ftp://x"), ("AGENT_PORT", "eighty")):
        done = started(**{**given, name: wrong})
        assert done.returncode == 1
        assert "Traceback" not in done.stderr


def test_a_server_that_could_not_record_the_use_of_an_approval_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "store-approvals").write_text("no directory")
    (tmp_path / "tokens").write_text(f"{ANN} a/b/c\n")
    given = {"COATCHECK_STORE": store_in(tmp_path), "COATCHECK_SECRET": SECRET, "AGENT_PORT": "0"}
    done = started(**given, COATCHECK_TOKEN_FILE=str(tmp_path / "tokens"))
    assert done.returncode not in (0, None)
    assert "store-approvals" in done.stderr
    assert "listening" not in done.stderr


def test_the_compose_file_starts_two_replicas_with_one_secret_on_the_s3_service() -> None:
    folder = SERVER.parent
    compose = yaml.safe_load((folder / "compose.yaml").read_text(encoding="utf-8"))
    agent, s3 = compose["services"]["agent"], compose["services"]["s3"]
    assert agent["scale"] == 2
    assert all(port.startswith("127.0.0.1:") for port in agent["ports"])
    assert (folder / agent["build"]["context"] / agent["build"]["dockerfile"]).samefile(folder / "Containerfile")
    wanted = {"COATCHECK_STORE", "COATCHECK_SECRET", "COATCHECK_TOKEN_FILE"}
    assert agent["environment"].keys() == wanted | {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    extended = yaml.safe_load((folder / s3["extends"]["file"]).read_text(encoding="utf-8"))
    service = extended["services"][s3["extends"]["service"]]
    assert "-bucket=coatcheck" in service["command"]
    assert agent["environment"]["COATCHECK_STORE"].startswith("s3://coatcheck/")
    assert set(service["volumes"]) == {f"{name}:/data" for name in compose["volumes"]}


def test_the_image_has_what_the_server_needs() -> None:
    lines = (SERVER.parent / "Containerfile").read_text(encoding="utf-8")
    extras = re.search(r"coatcheck\[([a-z,0-9]+)\]", lines)
    project = tomllib.loads((SERVER.parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert extras is not None
    assert set(extras[1].split(",")) <= project["optional-dependencies"].keys()
    for source in re.findall(r"^COPY (.+) \S+$", lines, re.MULTILINE):
        assert all((SERVER.parents[2] / name).exists() for name in source.split())
