"""The conformance battery on any store that has a URL: ``python -m coatcheck.testing --store URL``.

    python -m coatcheck.testing --store "s3://bucket/prefix?endpoint_url=http://127.0.0.1:9000"

Every case has a place of its own below the one that is named, and it is removed afterwards. One line a law.

    0     every law was kept, as far as it could be tried
    1     one was broken, or the store cannot be reached
    2     the command line or a setting cannot be understood
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections import Counter
from collections.abc import Sequence

import anyio
import msgspec

from coatcheck.errors import CoatcheckError, ConfigurationError
from coatcheck.testing.conformance import CASES, CaseResult, check_store
from coatcheck.testing.places import check_reachable, place_of

__all__ = ["main"]

_BROKEN = 1
_MISUSED = 2
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the battery, and print what each case came to.

    Args:
        arguments: of the command line; those of this process if none are given.

    Returns:
        The exit code.
    """
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except ConfigurationError as error:
        _complain(str(error))
        return _MISUSED
    except CoatcheckError as error:
        _complain(str(error))
        return _BROKEN
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # nobody reads it any more
        return _BROKEN


def _run(options: argparse.Namespace) -> int:
    known = [case.id for case in CASES]
    unknown = sorted(set(options.only) - set(known))
    if unknown:
        raise ConfigurationError(f"--only: no such case: {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    anyio.run(check_reachable, place_of(options.store), backend=options.backend)
    width = max(map(len, known))
    verdicts: Counter[str] = Counter()
    for id in known:
        if not options.only or id in options.only:
            result = anyio.run(
                functools.partial(_try, options.store, id, timeout=options.timeout), backend=options.backend
            )
            verdicts[result.verdict] += 1
            _write(msgspec.json.encode(result).decode() if options.json else _line(result, width))
    if not options.json:
        _write(", ".join(f"{verdicts[verdict]} {verdict}" for verdict in ("passed", "not-applicable", "failed")))
    return _BROKEN if verdicts["failed"] else 0


async def _try(url: str, id: str, *, timeout: float) -> CaseResult:
    place = place_of(url)
    async with place:
        report = await check_store(place.make, only=[id], timeout=timeout, **place.hooks())
    if place.left:
        _complain(f"what {id} made could not all be removed: {place.left}")
    return report.results[0]


def _line(result: CaseResult, width: int) -> str:
    line = f"{result.verdict:<14}  {result.id:<{width}}  {result.law}"
    if not result.detail:
        return line
    mark = "!" if result.verdict == "failed" else "-"
    return f"{line}\n{'':<14}  {'':<{width}}  {mark} {' '.join(result.detail.split())}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m coatcheck.testing",
        description="Hold a store to the laws of the port, one line a law.",
        epilog="Exit codes: 0 every law was kept, 1 one was broken or the store cannot be reached, 2 usage.",
    )
    parser.add_argument(
        "--store", required=True, metavar="URL", help="memory:, file:///path or s3://bucket/prefix?endpoint_url=..."
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="CASE", help="the id of a case to run; may be said several times"
    )
    parser.add_argument("--json", action="store_true", help="for programs: JSON, one object a line")
    parser.add_argument("--backend", choices=["asyncio", "trio"], default="asyncio", help="the event loop")
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="what one case may take (default: 60)"
    )
    return parser


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _complain(text: str) -> None:
    sys.stderr.write(f"coatcheck.testing: {' '.join(text.split())}\n")


if __name__ == "__main__":
    sys.exit(main())
