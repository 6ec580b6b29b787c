"""The agent server of ``deploy/server`` in processes of its own, and a client that goes round them."""

from __future__ import annotations

import itertools
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

SERVER = Path(__file__).parents[2] / "deploy" / "server" / "server.py"
SECRET = "a secret that only the tests know"
ANN, BOB = "ann-0123456789abcdef", "bob-0123456789abcdef"
TOKENS = f"# who may call\n{ANN} acme/ann/one\n{BOB} acme/ann/two\n"
NEW = "new"
STREAM = {"Accept": "text/event-stream"}

_CHANGED = "import sys; sys.path.insert(0, {!r}); import server\n{}\nserver.main()"


class Agent:
    """One server that runs.

    Args:
        store: the URL of its store. folder: where its file of tokens is written.
        environment: variables of its own.
        changed: what is done to the module ``server`` before it runs, as text.

    Attributes:
        url: of it. log: the lines that it wrote so far.
    """

    def __init__(
        self, store: str, folder: Path, environment: Mapping[str, str] | None = None, changed: str = ""
    ) -> None:
        tokens = folder / "tokens"
        tokens.write_text(TOKENS, encoding="utf-8")
        given = {"COATCHECK_STORE": store, "COATCHECK_SECRET": SECRET, "COATCHECK_TOKEN_FILE": str(tokens)}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("COATCHECK_")}
        self.process = subprocess.Popen(
            [sys.executable, *(["-c", _CHANGED.format(str(SERVER.parent), changed)] if changed else [SERVER])],
            env={**inherited, **given, "AGENT_PORT": "0", **(environment or {})},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log: list[str] = []
        self._heard: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        self.url = ""
        while not self.url:
            line = self._heard.get(timeout=50)
            assert line is not None, "".join(self.log)
            if found := re.search(r"listening on (http\S+)", line):
                self.url = found[1]

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            self._heard.put(line)
        self._heard.put(None)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def says(self, words: str) -> None:
        """Wait until it writes a line with these words."""
        while not any(words in line for line in self.log):
            assert self._heard.get(timeout=50) is not None, "".join(self.log)

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        code = self.process.wait(timeout=50)
        self._thread.join(timeout=50)
        return code

    def close(self) -> None:
        """End it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.ended()
        if self.process.stderr is not None:
            self.process.stderr.close()

    def dial(self, *, receive_buffer: int | None = None) -> socket.socket:
        """A bare connection."""
        parts = urlsplit(self.url)
        connection = socket.socket()
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(30)
        try:
            connection.connect((parts.hostname, parts.port))
        except OSError:
            connection.close()
            raise
        return connection


class Client:
    """A program that runs an agent: it asks its servers in turn, and carries the session from one to the next.

    Attributes:
        session: as the last answer had it; ``NEW`` begins another.
    """

    def __init__(self, *agents: Agent, token: str = ANN) -> None:
        self._http = httpx2.Client(headers={"Authorization": f"Bearer {token}"}, timeout=50)
        self.urls = itertools.cycle([agent.url for agent in agents])
        self.session: str = NEW

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, **given: Any) -> httpx2.Response:
        """Ask the next server."""
        return self._http.get(next(self.urls) + path, **given)

    def post(self, path: str, body: object, **given: Any) -> httpx2.Response:
        """Ask the next server."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._http.post(next(self.urls) + path, content=content, **given)

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask the next server, with the session, and keep the one of its answer."""
        response = self.post(path, {**body, "session": self.session})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        self.session = answer["session"]
        return answer

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The outcome of one call."""
        outcome: dict[str, Any] = self.answer("/calls", {"name": name, "arguments": arguments})["outcome"]
        return outcome

    def resume(self, pending: str, *, approved: bool = True, **words: Any) -> dict[str, Any]:
        """The outcome of a call about which somebody was asked."""
        body = {"pending": pending, "approved": approved, **words}
        outcome: dict[str, Any] = self.answer("/resume", body)["outcome"]
        return outcome

    @contextmanager
    def streaming(self, path: str, body: dict[str, Any]) -> Iterator[Iterator[tuple[str, Any]]]:
        """The events of a streamed answer as they come: name and data of each."""
        content = json.dumps(body).encode()
        with self._http.stream("POST", next(self.urls) + path, content=content, headers=STREAM) as response:
            assert response.headers["content-type"] == "text/event-stream"
            yield _events(response.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


@contextmanager
def running(
    store: str, folder: Path, count: int = 1, environment: Mapping[str, str] | None = None, changed: str = ""
) -> Iterator[tuple[Client, list[Agent]]]:
    """So many servers on one store, and a client that goes round them."""
    agents: list[Agent] = []
    try:
        agents += [Agent(store, folder, environment, changed) for _ in range(count)]
        client = Client(*agents)
        try:
            yield client, agents
        finally:
            client.close()
    finally:
        for agent in agents:
            agent.close()
