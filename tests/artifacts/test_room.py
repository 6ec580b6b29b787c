"""Room for what is in flight: never more than there is, in turn, and nothing is lost to a cancellation."""

from __future__ import annotations

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.artifacts.room import Room

pytestmark = pytest.mark.anyio


@given(
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 4), st.booleans(), st.integers(0, 6)), max_size=12),
)
async def test_there_is_never_more_inside_than_fits_and_all_of_it_comes_back_whoever_is_cancelled(
    pieces: list[tuple[int, int, bool, int]],
) -> None:
    room = Room(max_bytes=10, max_pieces=3)
    inside: list[int] = []

    async def visit(size: int, stay: int, scope: anyio.CancelScope) -> None:
        with scope:
            await room.take(size)
            inside.append(size)
            try:
                assert len(inside) == 1 or (len(inside) <= 3 and sum(inside) <= 10)
                for _ in range(stay):
                    await checkpoint()
            finally:
                inside.remove(size)
                room.give(size)

    async def cancel(scope: anyio.CancelScope, after: int) -> None:
        for _ in range(after):
            await checkpoint()
        scope.cancel()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for size, stay, cancelled, after in pieces:
                scope = anyio.CancelScope()
                tasks.start_soon(visit, size, stay, scope)
                if cancelled:
                    tasks.start_soon(cancel, scope, after)
        for size in (10, 15):  # it is empty again: the largest finds its place at once
            await room.take(size)
            room.give(size)


async def test_who_is_cancelled_when_room_was_just_given_gives_it_on() -> None:
    room = Room(max_bytes=1, max_pieces=1)
    await room.take(1)
    scope, order = anyio.CancelScope(), list[str]()

    async def first() -> None:
        with scope:
            await room.take(1)
            order.append("first")

    async def second() -> None:
        await room.take(1)
        order.append("second")

    async with anyio.create_task_group() as tasks:
        for job in (first, second):
            tasks.start_soon(job)
            for _ in range(5):
                await checkpoint()
        scope.cancel()
        room.give(1)
    assert order == ["second"]
