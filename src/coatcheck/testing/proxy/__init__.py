"""A proxy on the loopback that makes HTTP, and S3, fail on demand.

    async with FaultProxy("http://127.0.0.1:8333", answer(503, "SlowDown", on="upload_part", nth=2)) as proxy:
        ...  # a client of proxy.url

Own code, because what is on PyPI cuts bytes without knowing requests (or is a binary that is not there at all), while
these faults strike the n-th request of an S3 operation and count the bytes of its body.
"""

from coatcheck.testing.proxy.faults import (
    FaultKind,
    ProxyFault,
    alter,
    answer,
    lose_answer,
    reset,
    silence,
    slow,
    stall,
    truncate,
)
from coatcheck.testing.proxy.request import OPERATIONS, ProxyRequest, classify
from coatcheck.testing.proxy.server import FaultProxy

__all__ = [
    "OPERATIONS",
    "FaultKind",
    "FaultProxy",
    "ProxyFault",
    "ProxyRequest",
    "alter",
    "answer",
    "classify",
    "lose_answer",
    "reset",
    "silence",
    "slow",
    "stall",
    "truncate",
]
