"""What a store holds, counted: for an operator who wants to know what takes the room. No part of the port."""

from __future__ import annotations

import msgspec

__all__ = ["Usage"]


class Usage(msgspec.Struct, frozen=True):
    """What one scope's artifacts of one kind take, those among them that have expired and were not swept yet.

    Attributes:
        scope: as its key segments, since a long field cannot be read back: tenant, principal, conversation.
        kind: theirs; empty where it cannot be told any more.
        count: how many they are.
        bytes: of their payloads together.
    """

    scope: tuple[str, str, str]
    kind: str
    count: int
    bytes: int
