"""One artifact, and questions about it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import coatcheck as cc
from coatcheck.artifacts.port import ArtifactReader
from coatcheck.readers.querying import Query, QueryLimits, answer_query, produce
from coatcheck.readers.refs import Opener, ReaderError

SCOPE = cc.Scope(principal="dana", conversation="c-1")
SMALL = QueryLimits(timeout=2.0, memory_bytes=512 << 20, threads=1)


@asynccontextmanager
async def artifact(data: bytes, media_type: str = "application/json") -> AsyncIterator[Opener]:
    """A store with one artifact, as what opens it."""
    async with cc.MemoryStore() as store:
        put = await store.put(SCOPE, data, kind="test/data", media_type=media_type)

        def opener(start: int, end: int | None) -> AbstractAsyncContextManager[ArtifactReader | None]:
            return store.open(SCOPE, put.meta.ref, start, end)

        yield opener


async def ask(
    data: bytes | list[Any] | dict[str, Any], text: str, media_type: str = "application/json", **words: Any
) -> str:
    """The answer, or what is said in its place."""
    payload = data if isinstance(data, bytes) else json.dumps(data).encode()
    language = words.pop("language", "sql")
    async with artifact(payload, media_type) as opener:
        said = {"max_chars": 4000, "again": lambda at: f"again at {at}", **words}
        try:
            answer = await answer_query(opener, Query(language, text), **said)
        except ReaderError as error:
            return f"ERROR {error}"
    assert answer is not None
    assert len(answer) <= said["max_chars"]
    return answer


async def rows(
    data: bytes | list[Any] | dict[str, Any], text: str, media_type: str = "application/json", **words: Any
) -> Any:
    """The rows of an answer."""
    answer = await ask(data, text, media_type, **words)
    assert not answer.startswith("ERROR"), answer
    found = json.loads(answer)
    return found["rows"] if "rows" in found else found["result"]


async def produced(data: bytes | list[Any], text: str, language: Any = "sql", **words: Any) -> bytes:
    """The whole result."""
    payload = data if isinstance(data, bytes) else json.dumps(data).encode()
    async with artifact(payload) as opener, produce(opener, Query(language, text), **words) as result:
        assert result is not None
        return b"".join([chunk async for chunk in result.chunks()])
