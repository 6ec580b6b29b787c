"""What can go wrong with a request, and with which one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypedDict, Unpack

import msgspec

from coatcheck.errors import ConfigurationError
from coatcheck.settings import check_duration, check_whole
from coatcheck.testing.proxy.request import OPERATIONS, ProxyRequest

__all__ = [
    "FaultKind",
    "ProxyFault",
    "alter",
    "answer",
    "lose_answer",
    "reset",
    "silence",
    "slow",
    "stall",
    "truncate",
]

FaultKind = Literal["alter", "answer", "reset", "silence", "slow", "stall", "truncate"]
"""What a fault does."""

_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
_CODES = {
    400: "BadRequest",
    403: "AccessDenied",
    404: "NoSuchBucket",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    500: "InternalError",
    503: "SlowDown",
}


class ProxyFault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happens to some requests; made by `answer`, `reset`, `silence`, `stall`, `slow`, `truncate`,
    `alter` and `lose_answer`, whose arguments its attributes are.

    Attributes:
        kind: what it does.
        on: the operation (one of `OPERATIONS`) or the method (``"PUT"``) it happens to; ``None``: every request.
        where: asked about each request that ``on`` names; only where it says yes is the request counted and struck.
        first, last: which of those requests, counted from 1 since the fault was given to the proxy; ``last=None`` is
            every one from ``first`` on.
        passed: whether the upstream gets the whole request first, and its answer is thrown away or held back.
        status, code: what is answered.
        after_request_bytes, after_response_bytes: when it strikes, in bytes of content of the request's or of the
            answer's body.
        delay: seconds.
        request_rate, response_rate: bytes a second.
        request_at, response_at, length: which bytes of the body are altered.
    """

    kind: FaultKind
    on: str | None = None
    where: Callable[[ProxyRequest], bool] | None = None
    first: int = 1
    last: int | None = None
    passed: bool = False
    status: int = 500
    code: str = "InternalError"
    after_request_bytes: int | None = None
    after_response_bytes: int | None = None
    delay: float = 0.0
    request_rate: float | None = None
    response_rate: float | None = None
    request_at: int | None = None
    response_at: int | None = None
    length: int = 1

    def matches(self, request: ProxyRequest) -> bool:
        """Whether the request is one that this fault counts."""
        named = self.on is None or self.on in (request.operation, request.method)
        return named and (self.where is None or self.where(request))

    def strikes(self, number: int) -> bool:
        """Whether it happens to the ``number``-th request that matches."""
        return self.first <= number and (self.last is None or number <= self.last)


class _Which(TypedDict, total=False):
    """To which requests a fault happens: what every constructor takes, by name."""

    on: str | None
    where: Callable[[ProxyRequest], bool] | None
    nth: int | None
    calls: int | None


class _When(TypedDict):
    on: str | None
    where: Callable[[ProxyRequest], bool] | None
    first: int
    last: int | None


def _when(which: _Which) -> _When:
    if unknown := set(which) - _Which.__annotations__.keys():
        raise TypeError(f"unexpected argument: {', '.join(sorted(unknown))}")
    on = which.get("on")
    if on is not None and on not in (*OPERATIONS, *_METHODS):
        raise ConfigurationError(f"on must be an S3 operation ({', '.join(OPERATIONS)}) or a method, not {on!r:.80}")
    nth, calls = which.get("nth"), which.get("calls")
    if nth is not None and calls is not None:
        raise ConfigurationError("say nth= or calls=, not both")
    first, last = 1, None
    if nth is not None:
        first = last = check_whole("nth", nth)
    elif calls is not None:
        last = check_whole("calls", calls)
    return {"on": on, "where": which.get("where"), "first": first, "last": last}


def _offset(setting: str, value: int | None) -> int | None:
    return None if value is None else check_whole(setting, value, least=0)


def _one_of(**given: int | None) -> None:
    if sum(value is not None for value in given.values()) != 1:
        raise ConfigurationError(f"say one of {', '.join(f'{name}=' for name in given)}")


def answer(status: int, code: str | None = None, *, passed: bool = False, **which: Unpack[_Which]) -> ProxyFault:
    """Answer with ``status`` and S3's XML of an error instead of passing the request on.

    The body of the request is taken first, and the connection stays open.

    Args:
        status: 200 to 599; with 200 it is the error in the body of a success that S3 gives when an upload is completed.
        code: S3's, as ``"SlowDown"``; may be left out where ``status`` has a usual one.
        passed: let the upstream do it first and throw its answer away: the client is told of a failure of what is done.
        which: to which requests. ``on``: an operation of `OPERATIONS` or a method; ``where``: a function that says of
            a `ProxyRequest` whether it counts; ``nth``: only the n-th, from 1; ``calls``: only the first so many.

    Raises:
        ConfigurationError: an argument that cannot be honoured, by name.
    """
    check_whole("status", status)
    if not 200 <= status <= 599:
        raise ConfigurationError(f"status must be from 200 to 599, not {status}")
    if code is None:
        code = _CODES.get(status)
    if code is None or not code.isalnum():
        raise ConfigurationError(f"code must be a word for status {status}, as 'SlowDown', not {code!r:.80}")
    return ProxyFault(kind="answer", status=status, code=code, passed=passed, **_when(which))


def lose_answer(**which: Unpack[_Which]) -> ProxyFault:
    """Let the upstream do it, throw its answer away and reset the connection: done, and the client does not know.

    Args:
        which: as for `answer`.

    Raises:
        ConfigurationError: an argument that cannot be honoured, by name.
    """
    return ProxyFault(kind="reset", passed=True, **_when(which))


def reset(
    *, after_request_bytes: int | None = None, after_response_bytes: int | None = None, **which: Unpack[_Which]
) -> ProxyFault:
    """Reset the client's connection (an RST), at once when the head of the request is there, or in a body.

    Args:
        after_request_bytes: when exactly so many bytes of the request's body were passed on. 0: the upstream gets
            the head alone; the whole length: it gets everything. A shorter body is not struck.
        after_response_bytes: when so many bytes of the answer's body were sent. What the client had not read yet may
            be lost with the connection, as with any reset.
        which: as for `answer`.

    Raises:
        ConfigurationError: an argument that cannot be honoured, by name.
    """
    if after_request_bytes is not None or after_response_bytes is not None:
        _one_of(after_request_bytes=after_request_bytes, after_response_bytes=after_response_bytes)
    return ProxyFault(
        kind="reset",
        after_request_bytes=_offset("after_request_bytes", after_request_bytes),
        after_response_bytes=_offset("after_response_bytes", after_response_bytes),
        **_when(which),
    )


def silence(*, passed: bool = False, **which: Unpack[_Which]) -> ProxyFault:
    """Take the request and say nothing (no ``100 Continue`` either), until ``proxy.release()`` or the end.

    Released, the connection closes without an answer.

    Args:
        passed: let the upstream do it, and hold back its answer; released, the client gets it.
        which: as for `answer`.

    Raises:
        ConfigurationError: an argument that cannot be honoured, by name.
    """
    return ProxyFault(kind="silence", passed=passed, **_when(which))


def stall(
    *, after_request_bytes: int | None = None, after_response_bytes: int | None = None, **which: Unpack[_Which]
) -> ProxyFault:
    """Stop in a body until ``proxy.release()``, and go on then as if nothing had been.

    Sockets buffer: a client may have sent some megabytes before it feels that nobody reads, and while nobody reads
    the proxy does not see that the client has left.

    Args:
        after_request_bytes, after_response_bytes: one of them: when so many bytes were passed on.
        which: as for `answer`.

    Raises:
        ConfigurationError: an argument that cannot be honoured, by name.
    """
    _one_of(after_request_bytes=after_request_bytes, after_response_bytes=after_response_bytes)
    return ProxyFault(
        kind="stall",
        after_request_bytes=_offset("after_request_bytes", after_request_bytes),
        after_response_bytes=_offset("after_response_bytes", after_response_bytes),
        **_when(which),
    )


def slow(
    *,
    delay: float | None = None,
    request_rate: float | None = None,
    response_rate: float | None = None,
    **which: Unpack[_Which],
) -> ProxyFault:
    """Pass everything, slowly.

    Args:
        delay: how many seconds the upstream's answer is held back before its first byte.
        request_rate, response_rate: at most so many bytes a second of the request's, of the answer's body.
        which: as for `answer`.

    Raises:
        ConfigurationError: an argument that cannot be honoured, by name, or nothing to be slow in.
    """
    if delay is None and request_rate is None and response_rate is None:
        raise ConfigurationError("say at least one of delay=, request_rate=, response_rate=")
    return ProxyFault(
        kind="slow",
        delay=0.0 if delay is None else check_duration("delay", delay),
        request_rate=_rate("request_rate", request_rate),
        response_rate=_rate("response_rate", response_rate),
        **_when(which),
    )


def _rate(setting: str, value: float | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value < float("inf"):
        raise ConfigurationError(f"{setting} must be a number of bytes a second of at least 1, not {value!r:.80}")
    return float(value)


def truncate(*, after_response_bytes: int, **which: Unpack[_Which]) -> ProxyFault:
    """Send so many bytes of the answer's body under the whole one's head, and close the connection properly.

    Args:
        after_response_bytes: how many; a body that is not longer is not struck, but a chunked one loses its end.
        which: as for `answer`.

    Raises:
        ConfigurationError: an argument that cannot be honoured, by name.
    """
    check_whole("after_response_bytes", after_response_bytes, least=0)
    return ProxyFault(kind="truncate", after_response_bytes=after_response_bytes, **_when(which))


def alter(
    *, request_at: int | None = None, response_at: int | None = None, length: int = 1, **which: Unpack[_Which]
) -> ProxyFault:
    """Turn over every bit of some bytes of a body; its length stays.

    Args:
        request_at, response_at: one of them: the first altered byte of the request's, of the answer's body, from 0.
        length: how many bytes; what lies beyond the end of the body is not struck.
        which: as for `answer`.

    Raises:
        ConfigurationError: an argument that cannot be honoured, by name.
    """
    _one_of(request_at=request_at, response_at=response_at)
    return ProxyFault(
        kind="alter",
        request_at=_offset("request_at", request_at),
        response_at=_offset("response_at", response_at),
        length=check_whole("length", length),
        **_when(which),
    )
