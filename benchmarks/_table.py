"""What every benchmark shares: one plain table on the terminal, and the same rows as JSON on request.

    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    report("Import time", ["what", "wall ms", "ratio"], rows, args, note="median of 30 fresh interpreters")

Numbers are handed over as they are: the table rounds them, the JSON does not.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

Cell = str | int | float | bool | None

__all__ = ["Cell", "arguments", "report"]


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser that knows ``--json FILE``; the benchmark adds its own arguments."""
    # The first paragraph of a module's docstring is its question, and that is what --help shows.
    summary = (description or "").strip().partition("\n\n")[0]
    parser = argparse.ArgumentParser(description=summary, allow_abbrev=False)
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the rows to FILE, as JSON")
    return parser


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        # Three significant digits, without an exponent for the sizes that occur here.
        magnitude = abs(cell)
        decimals = 3 if magnitude < 1 else 2 if magnitude < 100 else 1 if magnitude < 1000 else 0
        return f"{cell:,.{decimals}f}"
    return cell


def _machine() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} {platform.machine()}"


def report(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    args: argparse.Namespace,
    *,
    note: str | None = None,
    facts: Mapping[str, Cell] | None = None,
) -> None:
    """Print one table, and write it to ``args.json`` where that was asked for.

    Args:
        title: what was measured; the line above the table.
        columns: the headings; every row has as many cells.
        rows: strings are set left, numbers right; ``None`` is printed as ``-``.
        args: what ``arguments(...).parse_args()`` gave.
        note: a sentence under the table: how it was measured.
        facts: single numbers beside the rows, for example a limit that a row is held to.
    """
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"{title}: a row of {len(row)} cells under {len(columns)} columns: {row!r}")

    cells = [[_text(cell) for cell in row] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(columns, *cells, strict=True)]
    numeric = [
        any(isinstance(row[i], int | float) for row in rows)
        and all(row[i] is None or isinstance(row[i], int | float) for row in rows)
        for i in range(len(columns))
    ]

    def line(texts: Sequence[str]) -> str:
        aligned = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(texts, widths, numeric, strict=True)
        )
        return "  ".join(aligned).rstrip()

    print(f"{title}  ({_machine()})", end="\n\n")
    print(line(columns))
    print("  ".join("-" * width for width in widths))
    for row_texts in cells:
        print(line(row_texts))
    print()
    for name, fact in (facts or {}).items():
        print(f"{name}: {_text(fact)}")
    if note:
        print(note)
    sys.stdout.flush()

    if args.json is not None:
        document = {
            "title": title,
            "machine": _machine(),
            "note": note,
            "facts": dict(facts or {}),
            "rows": [dict(zip(columns, row, strict=True)) for row in rows],
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
