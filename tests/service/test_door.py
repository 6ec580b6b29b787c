"""The door: who may read what, what is answered, and what nobody learns."""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import httpx2
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Mount

import coatcheck as cc
from coatcheck.errors import ConfigurationError, StoreUnavailable
from coatcheck.service import artifact_app
from coatcheck.service.reply import ResponseCut
from tests.service._door import ANN, BOB, HEADERS, MISSING, Peer, Watched, client, door, put, seen

pytestmark = pytest.mark.anyio

MALFORMED = [
    "x",
    "art_x",
    MISSING.upper(),
    MISSING + "0",
    "%00",
    "%0A",
    "..%2F..%2Fetc%2Fpasswd",
    "a/b/c",
    "",
    "%ff%fe",
    "x" * 5000,
    "meta",
    "%C3%B6",
]


# --- what is there ---


@pytest.mark.parametrize("size", [0, 1, 262_144, 262_145, 3_000_000])
async def test_a_payload_comes_as_it_was_put(store: cc.ArtifactStore, size: int) -> None:
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    meta = await put(store, data, media_type="application/json")
    async with client(door(store)) as asks:
        response = await asks.get(f"/artifacts/{meta.ref}")
        head = await asks.head(f"/artifacts/{meta.ref}")
    assert (response.status_code, response.content) == (200, data)
    assert response.headers["content-length"] == str(size)
    assert response.headers["etag"] == f'"{meta.digest}"'
    assert response.headers["accept-ranges"] == "bytes"
    digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
    assert response.headers["repr-digest"] == f"sha-256=:{digest}:"
    assert (head.status_code, head.content) == (200, b"")
    assert seen(head)[1] == seen(response)[1]


async def test_meta_is_the_record_as_json(store: cc.ArtifactStore) -> None:
    meta = await put(store, b"x", label="a <b>label</b>", origin={"call": "7"})
    async with client(door(store)) as asks:
        response = await asks.get(f"/artifacts/{meta.ref}/meta")
    assert response.headers["content-type"] == "application/json"
    assert response.json()["label"] == "a <b>label</b>"
    assert response.json()["digest"] == meta.digest
    assert response.json()["origin"] == {"call": "7"}


async def test_the_pages_of_a_scope_are_its_artifacts_each_once_and_no_one_elses(store: cc.ArtifactStore) -> None:
    mine = {(await put(store, b"%d" % number)).ref for number in range(7)}
    await put(store, b"theirs", BOB)
    found: list[str] = []
    query: dict[str, Any] = {"limit": 3}
    async with client(door(store)) as asks:
        while True:
            page = (await asks.get("/artifacts", params=query)).json()
            found += [meta["ref"] for meta in page["artifacts"]]
            assert len(page["artifacts"]) <= 3
            if page["cursor"] is None:
                break
            query["cursor"] = page["cursor"]
    assert len(found) == 7
    assert set(found) == mine


@pytest.mark.parametrize(
    "query", ["limit=x", "limit=-1", "limit=", "limit=1&limit=2", "cursor=a&cursor=b", "a=" + "x" * 4000]
)
async def test_a_query_that_says_nothing_is_refused(query: str) -> None:
    async with client(door(cc.MemoryStore())) as asks:
        assert (await asks.get(f"/artifacts?{query}")).status_code == 400


@pytest.mark.parametrize("query", ["", "limit=0", "limit=999999999", "cursor=nonsense", "other=1"])
async def test_a_page_is_bounded_whatever_is_asked(query: str) -> None:
    store = cc.MemoryStore()
    for number in range(210):
        await put(store, b"%d" % number)
    async with client(door(store)) as asks:
        page = (await asks.get(f"/artifacts?{query}")).json()
    assert 1 <= len(page["artifacts"]) <= 200


# --- what is not there ---


@pytest.mark.parametrize("way", ["", "/meta"])
@pytest.mark.parametrize("headers", [{}, {"Range": "bytes=0-1"}, {"Range": "bytes=-1"}, {"If-None-Match": "*"}])
async def test_missing_foreign_expired_and_malformed_refs_are_one_answer(way: str, headers: dict[str, str]) -> None:
    now = [datetime(2031, 1, 1, tzinfo=UTC)]
    store = Watched(clock=lambda: now[0])
    foreign = await put(store, b"theirs", BOB)
    expired = await put(store, b"old", expires_at=now[0] + timedelta(hours=1))
    now[0] += timedelta(hours=2)
    answers, looks = [], []
    async with client(door(store)) as asks:
        for ref in [MISSING, foreign.ref, expired.ref, *MALFORMED]:
            for method in ("GET", "HEAD"):
                store.looks.clear()
                response = await asks.request(method, f"/artifacts/{ref}{way}", headers=headers)
                status, raw, body = seen(response)
                assert (body != b"") is (method == "GET")
                answers.append((method, status, tuple(raw)))
                looks.append((method, tuple(store.looks)))
    assert {(status, raw) for _, status, raw in answers} == {(404, answers[0][2])}
    assert len(set(looks)) == 2  # one order of work for GET, and one for HEAD


async def test_the_scope_comes_from_who_asks_and_not_from_the_request() -> None:
    """Case E4."""
    store = cc.MemoryStore()
    theirs = await put(store, b"theirs", BOB)
    async with client(door(store)) as asks:
        for query in ["scope=acme/bob/one", "principal=bob&tenant=acme&conversation=one", "cursor=acme/bob/one"]:
            assert (await asks.get(f"/artifacts/{theirs.ref}?{query}")).status_code == 404
            assert (await asks.get(f"/artifacts?{query}")).json()["artifacts"] == []
        claims = {"X-Scope": "acme/bob/one", "X-Principal": "bob", "X-Forwarded-User": "bob", "From": "bob"}
        assert (await asks.get(f"/artifacts/{theirs.ref}", headers=claims)).status_code == 404
        assert (await asks.get(f"/artifacts/acme/bob/one/{theirs.ref}")).status_code == 404
    async with client(door(store), BOB) as asks:
        assert (await asks.get(f"/artifacts/{theirs.ref}")).content == b"theirs"


# --- who is nobody ---


@pytest.mark.parametrize("path", ["", *(f"/{ref}" for ref in MALFORMED), f"/{MISSING}", f"/{MISSING}/meta", "?limit=x"])
@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer wrong-0123456789abcdef", "Basic YTpi", "Bearer ann-0123456789abcdef x", "\xff" * 20],
)
async def test_nobody_gets_one_answer_before_anything_is_looked_up(path: str, authorization: str | None) -> None:
    store = Watched()
    headers = [] if authorization is None else [("authorization", authorization.encode("latin-1"))]
    async with client(door(store), None) as asks:
        response = await asks.get(f"/artifacts{path}", headers=headers)  # type: ignore[arg-type]  # bytes are taken, too
        other = await asks.get("/artifacts/other")
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert seen(response) == seen(other)
    assert store.looks == []


async def test_two_credentials_are_none() -> None:
    async with client(door(cc.MemoryStore()), None) as asks:
        both = [("Authorization", HEADERS[ANN]["Authorization"]), ("Authorization", HEADERS[BOB]["Authorization"])]
        assert (await asks.get("/artifacts", headers=both)).status_code == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "ODD"])
@pytest.mark.parametrize("path", ["/artifacts", f"/artifacts/{MISSING}", f"/artifacts/{MISSING}/meta", "/elsewhere"])
async def test_nothing_can_be_changed(method: str, path: str) -> None:
    store = Watched()
    async with client(door(store)) as asks:
        response = await asks.request(method, path)
    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")
    assert store.looks == []


async def test_a_request_with_a_body_is_refused_unread() -> None:
    async with client(door(cc.MemoryStore())) as asks:
        assert (await asks.request("GET", "/artifacts", content=b"x")).status_code == 413

        async def endless() -> Any:
            yield b"x"
            raise AssertionError("the body was read")

        assert (await asks.request("GET", "/artifacts", content=endless())).status_code == 413


async def test_the_host_decides_by_a_function_of_either_kind() -> None:
    store = cc.MemoryStore()
    meta = await put(store, b"x")

    def plain(request: Request) -> cc.Scope | None:
        return ANN if request.headers.get("x-user") == "ann" else None

    async def slow(request: Request) -> cc.Scope | None:
        await anyio.lowlevel.checkpoint()
        return plain(request)

    for authenticate in (plain, slow):
        async with client(artifact_app(store, authenticate=authenticate), None) as asks:
            assert (await asks.get(f"/artifacts/{meta.ref}", headers={"X-User": "ann"})).status_code == 200
            assert (await asks.get(f"/artifacts/{meta.ref}")).status_code == 401


async def test_what_the_host_raises_is_the_hosts_answer() -> None:
    def authenticate(_: Request) -> cc.Scope | None:
        raise HTTPException(429, headers={"Retry-After": "9"})

    async with client(artifact_app(cc.MemoryStore(), authenticate=authenticate)) as asks:
        assert (await asks.get("/artifacts")).status_code == 429


async def test_a_host_that_answers_anything_but_a_scope_opens_nothing() -> None:
    store = Watched()
    async with client(artifact_app(store, authenticate=lambda _: True)) as asks:  # type: ignore[arg-type,return-value]  # on purpose
        with pytest.raises(TypeError, match="scope must be a Scope"):
            await asks.get("/artifacts")
    assert store.looks == []


def test_a_door_without_a_lock_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs authenticate"):
        artifact_app(cc.MemoryStore())


@pytest.mark.parametrize(
    ("setting", "value"),
    [("write_timeout", 0), ("max_age", -1), ("readers", 0), ("readers", 1.5), ("authenticate", "token")],
)
def test_a_setting_that_cannot_be_honoured_is_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"artifact_app.{setting}"):
        door(cc.MemoryStore(), **{setting: value})


async def test_it_can_be_mounted_under_any_path() -> None:
    store = cc.MemoryStore()
    meta = await put(store, b"x")
    app = Starlette(routes=[Mount("/files", app=door(store))])
    async with client(app) as asks:
        assert (await asks.get(f"/files/artifacts/{meta.ref}")).content == b"x"
        assert (await asks.get("/files/artifacts")).json()["artifacts"][0]["ref"] == meta.ref
        assert (await asks.get("/files/artifacts/%0A")).status_code == 404


# --- preconditions ---


def conditions(meta: cc.ArtifactMeta) -> list[tuple[dict[str, str], int]]:
    tag, other = f'"{meta.digest}"', '"other"'
    put_at = meta.created_at.replace(microsecond=0)

    def spell(seconds: float) -> str:
        return (put_at + timedelta(seconds=seconds)).strftime("%a, %d %b %Y %H:%M:%S GMT")

    now, before, after, some = spell(0), spell(-60), spell(60), {"Range": "bytes=0-2"}
    return [
        ({"If-None-Match": tag}, 304),
        ({"If-None-Match": f"W/{tag}"}, 304),
        ({"If-None-Match": f"{other}, ,  {tag}"}, 304),
        ({"If-None-Match": "*"}, 304),
        ({"If-None-Match": other}, 200),
        ({"If-None-Match": meta.digest}, 200),
        ({"If-None-Match": f"{tag} nonsense"}, 200),
        ({"If-None-Match": other, "If-Modified-Since": after}, 200),
        ({"If-Modified-Since": now}, 304),
        ({"If-Modified-Since": after}, 304),
        ({"If-Modified-Since": before}, 200),
        ({"If-Modified-Since": "yesterday"}, 200),
        ({"If-Modified-Since": "Sun, 31 Feb 99999 99:99:99 GMT"}, 200),
        ({"If-Match": tag}, 200),
        ({"If-Match": "*"}, 200),
        ({"If-Match": f"W/{tag}"}, 412),
        ({"If-Match": other}, 412),
        ({"If-Match": ""}, 412),
        ({"If-Match": tag, "If-Unmodified-Since": before}, 200),
        ({"If-Match": tag, "If-None-Match": tag}, 304),
        ({"If-Unmodified-Since": before}, 412),
        ({"If-Unmodified-Since": now}, 200),
        ({**some, "If-Range": tag}, 206),
        ({**some, "If-Range": now}, 206),
        ({**some, "If-Range": f"W/{tag}"}, 200),
        ({**some, "If-Range": other}, 200),
        ({**some, "If-Range": after}, 200),
        ({**some, "If-Range": before}, 200),
        ({**some, "If-Range": "nonsense"}, 200),
        ({"Range": "bytes=99-", "If-Range": tag}, 416),
        ({"Range": "bytes=99-", "If-Range": other}, 200),
        ({**some, "If-None-Match": tag}, 304),
        ({**some, "If-Match": other}, 412),
        ({"If-Range": tag}, 200),
    ]


async def test_preconditions_are_judged_as_the_rfc_orders_them(store: cc.ArtifactStore) -> None:
    meta = await put(store, b"0123456789")
    async with client(door(store)) as asks:
        for headers, status in conditions(meta):
            response = await asks.get(f"/artifacts/{meta.ref}", headers=headers)
            assert response.status_code == status, headers
            head = await asks.head(f"/artifacts/{meta.ref}", headers=headers)
            assert head.status_code == (200 if status in (206, 416) else status), headers
            if status == 304:
                assert response.content == b""
                assert response.headers["etag"] == f'"{meta.digest}"'
                assert "content-length" not in response.headers
                assert "content-type" not in response.headers


async def test_a_long_list_of_tags_is_read_in_a_straight_line() -> None:
    store = cc.MemoryStore()
    meta = await put(store, b"x")
    async with client(door(store)) as asks:
        for header in ['"x",' * 50_000, " " * 100_000 + "x", '"' * 100_001, ("W/" * 50_000), '"a" ' * 50_000]:
            response = await asks.get(f"/artifacts/{meta.ref}", headers={"If-None-Match": header})
            assert response.status_code == 200


# --- what may be kept, and how it is shown ---


@pytest.mark.parametrize(("left", "age"), [(None, 300), (10_000, 300), (100, 100)])
async def test_nothing_may_be_kept_past_its_expiry(left: int | None, age: int) -> None:
    now = datetime(2031, 1, 1, tzinfo=UTC)
    store = cc.MemoryStore(clock=lambda: now)
    expires_at = None if left is None else now + timedelta(seconds=left)
    meta = await put(store, b"x", expires_at=expires_at)
    async with client(door(store, clock=lambda: now)) as asks:
        response = await asks.get(f"/artifacts/{meta.ref}")
        listed = await asks.get("/artifacts")
    assert response.headers["cache-control"].startswith(f"private, max-age={age}, must-revalidate")
    assert listed.headers["cache-control"] == "private, no-store"


INERT = ["text/plain", "application/json", "image/png", "image/jpeg", "image/gif", "image/webp"]
ACTIVE = [
    "text/html",
    "image/svg+xml",
    "text/xml",
    "application/xml",
    "application/xhtml+xml",
    "text/javascript",
    "application/javascript",
    "text/css",
    "text/cache-manifest",
    "application/x-shockwave-flash",
    "multipart/x-mixed-replace",
    "message/rfc822",
    "application/unheard-of",
]


@pytest.mark.parametrize("media_type", [*INERT, *ACTIVE, "text/csv", "application/pdf"])
async def test_what_a_tool_brought_home_is_never_rendered(media_type: str) -> None:
    store = cc.MemoryStore()
    label = 'evil"\\; filename=x.html'
    meta = await put(store, b"<script>alert(1)</script>", media_type=media_type, kind="evil/<kind>", label=label)
    async with client(door(store)) as asks:
        answers = [
            await asks.get(f"/artifacts/{meta.ref}", headers=headers)
            for headers in (
                {},
                {"Range": "bytes=0-5"},
                {"If-None-Match": "*"},
                {"Range": "bytes=99-"},
                {"If-Match": "x"},
            )
        ]
        answers += [await asks.get(path) for path in ("/artifacts", f"/artifacts/{meta.ref}/meta", "/artifacts/x")]
        answers += [await asks.head(f"/artifacts/{meta.ref}"), await asks.post("/artifacts")]
    assert [answer.status_code for answer in answers] == [200, 206, 304, 416, 412, 200, 200, 404, 200, 405]
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'; sandbox"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "Authorization" in answer.headers["vary"]
        assert "evil" not in str(answer.headers)
    for answer in answers[:2]:
        shown, *_ = answer.headers["content-disposition"].split(";")
        assert shown == ("inline" if media_type in INERT else "attachment")
        assert re.fullmatch(rf'{shown}; filename="{meta.ref}\.[a-z]+"', answer.headers["content-disposition"])
        if media_type in ACTIVE:
            assert answer.headers["content-type"] == "application/octet-stream"
        else:
            assert answer.headers["content-type"].partition(";")[0] == media_type


# --- stores that cannot answer, and payloads that are not what they were ---


@pytest.mark.parametrize("path", ["/artifacts", f"/artifacts/{MISSING}", f"/artifacts/{MISSING}/meta", "/artifacts/x"])
async def test_a_store_that_is_down_says_so_and_nothing_else(path: str) -> None:
    store = Watched()
    store.broken = StoreUnavailable("S3 at http://10.0.0.7:9000 refused the key AKIA0123456789")
    async with client(door(store)) as asks:
        response = await asks.get(path)
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) > 0
    assert response.json() == {"error": "the store cannot answer now: try again"}


async def test_a_small_payload_that_is_damaged_is_an_error_from_the_start() -> None:
    store = Watched()
    meta = await put(store, b"x" * 1000)
    store.damage(ANN, meta.ref)
    async with client(door(store)) as asks:
        response = await asks.get(f"/artifacts/{meta.ref}")
    assert (response.status_code, response.json()) == (500, {"error": "this artifact is damaged"})
    assert store.opened == 0


async def test_a_large_payload_that_is_damaged_is_cut_short_of_its_length() -> None:
    store = Watched()
    meta = await put(store, b"x" * 1_000_000)
    store.damage(ANN, meta.ref)
    peer = Peer(f"/artifacts/{meta.ref}")
    with pytest.raises(ResponseCut):
        await door(store)(peer.scope, peer.receive, peer.send)
    assert len(peer.body) < 1_000_000
    assert not peer.complete
    assert store.opened == 0


# --- clients that are slow, or gone ---


@pytest.mark.parametrize("takes", [0, 1, 2, 5])
async def test_a_client_that_goes_away_frees_everything(takes: int) -> None:
    store = Watched()
    meta = await put(store, b"x" * 2_000_000)
    peer = Peer(f"/artifacts/{meta.ref}", takes)
    async with anyio.create_task_group() as group:
        group.start_soon(door(store), peer.scope, peer.receive, peer.send)
        await peer.stuck.wait()
        assert store.opened == 1
        peer.gone.set()
    assert store.opened == 0
    assert len(peer.sent) == takes


@pytest.mark.parametrize("size", [1000, 2_000_000])
@pytest.mark.parametrize("takes", [0, 1])
async def test_a_client_that_takes_nothing_is_given_up(size: int, takes: int) -> None:
    store = Watched()
    meta = await put(store, b"x" * size)
    peer = Peer(f"/artifacts/{meta.ref}", takes)
    with pytest.raises(ResponseCut):
        await door(store, write_timeout=0.2)(peer.scope, peer.receive, peer.send)
    assert store.opened == 0


async def test_a_slow_client_of_a_small_payload_holds_no_reader() -> None:
    store = Watched()
    meta = await put(store, b"x" * 200_000)
    peer = Peer(f"/artifacts/{meta.ref}", 1)
    async with anyio.create_task_group() as group:
        group.start_soon(door(store, readers=1), peer.scope, peer.receive, peer.send)
        await peer.stuck.wait()
        assert store.opened == 0
        peer.gone.set()


async def test_no_more_payloads_are_read_at_once_than_was_said() -> None:
    store = Watched()
    meta = await put(store, b"x" * 2_000_000)
    app = door(store, readers=2, write_timeout=0.5)
    peers = [Peer(f"/artifacts/{meta.ref}", 2) for _ in range(2)]

    async def hold(peer: Peer) -> None:
        with pytest.raises(ResponseCut):
            await app(peer.scope, peer.receive, peer.send)

    async with anyio.create_task_group() as group:
        for peer in peers:
            group.start_soon(hold, peer)
        for peer in peers:
            await peer.stuck.wait()
        async with client(app) as asks:
            waiting = await asks.get(f"/artifacts/{meta.ref}")
            assert (await asks.get(f"/artifacts/{meta.ref}/meta")).status_code == 200
    assert waiting.status_code in (200, 503)  # a turn may have come in the last moment
    assert store.opened == 0
    async with client(app) as asks:
        assert (await asks.get(f"/artifacts/{meta.ref}")).status_code == 200


async def test_by_itself_it_opens_the_store_for_its_lifespan(store: cc.ArtifactStore) -> None:
    opened: list[str] = []

    class Store(cc.MemoryStore):
        async def __aenter__(self) -> Any:
            opened.append("open")
            return self

        async def __aexit__(self, *_: object) -> None:
            opened.append("closed")

    app = door(Store())
    async with app.router.lifespan_context(app):
        assert opened == ["open"]
    assert opened == ["open", "closed"]


async def test_hundreds_of_readers_at_once_each_get_the_whole(store: cc.ArtifactStore) -> None:
    data = b"0123456789abcdef" * 40_000
    meta = await put(store, data)
    good: list[bool] = []

    async def read(asks: httpx2.AsyncClient) -> None:
        good.append((await asks.get(f"/artifacts/{meta.ref}")).content == data)

    async with client(door(store, readers=16)) as asks, anyio.create_task_group() as group:
        for _ in range(100):
            group.start_soon(read, asks)
    assert good == [True] * 100


async def test_whoever_never_decides_who_asks_is_given_up_and_holds_no_request() -> None:
    deciding = 0

    async def hangs(request: object) -> None:
        nonlocal deciding
        deciding += 1
        try:
            await anyio.sleep_forever()
        finally:
            deciding -= 1

    app = artifact_app(cc.MemoryStore(), authenticate=hangs, write_timeout=0.3)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://door") as client:
        answer = await client.get(f"/artifacts/{MISSING}")
    assert (answer.status_code, deciding) == (503, 0)
