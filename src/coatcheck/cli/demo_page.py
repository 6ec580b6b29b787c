"""How the demo is printed, and how it checks itself.

Plain lines without frames, folded to the width of the window; colour only where the output is a terminal. What
a model reads stands behind a bar, so that nobody takes a line of the demo for a line of the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from coatcheck import Decision, Fingerprint, Outcome

__all__ = ["Page", "Unmet", "spell_call"]

_O = TypeVar("_O", bound=Outcome)
_T = TypeVar("_T")

_MIN_WIDTH, _MAX_WIDTH = 30, 100
_GUTTER = 9
_SHOWN = 900


class Unmet(Exception):
    """Something is not as the demo says that it is."""


class Page:
    """Where the demo is printed.

    Args:
        console: where to, and how wide; prose is never wider than 100 columns.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = max(_MIN_WIDTH, min(console.width, _MAX_WIDTH))
        self._last = ""
        self._sections = 0
        self.checks: int = 0

    # --- prose ---

    def title(self, text: str) -> None:
        """The first line."""
        self._begin("title")
        self._lines(text, style="bold")
        self._line("=" * min(len(text), self._width))

    def section(self, text: str) -> None:
        """Begin the next section, with its number."""
        self._sections += 1
        heading = f"{self._sections}. {text}"
        self._begin("section")
        self._lines(heading, style="bold")
        self._line("-" * min(len(heading), self._width))

    def say(self, text: str) -> None:
        """A paragraph."""
        self._begin("paragraph")
        self._lines(text)

    def define(self, words: Mapping[str, str]) -> None:
        """A list of words, each with what it means."""
        self._begin("list")
        for word, meaning in words.items():
            self._entry(word, [meaning], "bold", indent=max(map(len, words)) + 2)

    # --- calls ---

    def show(self, outcome: Outcome, call: str, *, most: int = _SHOWN) -> None:
        """One call and its outcome.

        Args:
            outcome: what the boundary gave.
            call: the call, in words.
            most: how many characters of a text are shown before the demo shortens it.
        """
        ran = "the tool ran" if outcome.executed else "the tool did not run"
        status = "no status" if outcome.status is None else f"status {outcome.status}"
        self._begin("call")
        self._entry("call", [call], "bold")
        self._quote("reads", outcome.text, most)
        self._entry("outcome", [f"{type(outcome).__name__}; {status}; {ran}"], "bold cyan")
        self._entry("ledger", [_spell(row) for row in outcome.decisions] or ["no rule was asked"])

    def answer(self, text: str) -> None:
        """What a model says to a person."""
        self._begin("answer")
        self._barred("answer", text)

    def expect(self, outcome: Outcome, kind: type[_O], *, status: str | None = None) -> _O:
        """The outcome, if it is of this kind and has this status.

        Raises:
            Unmet: it is another one, or has another status.
        """
        if not isinstance(outcome, kind):
            raise Unmet(
                f"the call of {outcome.tool} should end as {kind.__name__}, and ended as {type(outcome).__name__}: "
                f"{_shown(outcome.text[:300])}"
            )
        if outcome.status != status:
            raise Unmet(f"the call of {outcome.tool} should have the status {status}, and has {outcome.status}")
        self.checks += 1
        return outcome

    def check(self, holds: bool, fact: str) -> None:
        """State a fact that the demo has verified.

        Raises:
            Unmet: it does not hold.
        """
        if not holds:
            raise Unmet(f"this should hold, and does not: {fact}")
        self.checks += 1
        self._begin("check")
        self._entry("ok", [fact], "green")

    def given(self, value: _T | None, fact: str) -> _T:
        """A value that must be there; stated like a `check`."""
        self.check(value is not None, fact)
        assert value is not None
        return value

    # --- lines ---

    def _begin(self, block: str) -> None:
        """A blank line between two blocks; none between two checks."""
        if self._last and not block == self._last == "check":
            self._line("")
        self._last = block

    def _quote(self, label: str, text: str, most: int) -> None:
        """What the model reads; a long text without its middle, which is said on a line that has no bar."""
        if len(text) <= most:
            self._barred(label, text)
            return
        head, tail = text[: most * 2 // 3], text[-(most // 3) :]
        left_out = len(text) - len(head) - len(tail)
        self._barred(label, head)
        self._entry(
            "", [f"[{left_out:,} characters are left out here by this demo; the model reads them]"], "", "italic"
        )
        self._barred("", tail)

    def _barred(self, label: str, text: str) -> None:
        self._entry(label, [text], bar="| ")

    def _entry(
        self, label: str, texts: list[str], style: str = "", body: str = "", *, bar: str = "", indent: int = _GUTTER
    ) -> None:
        """A label in the margin, and texts beside it, folded."""
        margin = f"  {label}".ljust(indent + 2)
        for text in texts:
            for line in self._folded(text, self._width - len(margin) - len(bar)):
                self._line(Text.assemble((margin, style), (bar, "dim"), (line if bar else line.rstrip(), body)))
                margin = " " * len(margin)

    def _lines(self, text: str, style: str = "") -> None:
        for line in self._folded(text, self._width):
            self._line(Text(line.rstrip(), style))

    def _folded(self, text: str, width: int) -> Iterator[str]:
        """``text`` in lines of at most ``width`` columns; joined, they are the text again."""
        encoding = self._console.encoding
        printable = _shown(text).encode(encoding, "backslashreplace").decode(encoding)
        for line in printable.split("\n"):
            yield from _fold(line, max(width, 2))

    def _line(self, line: Text | str) -> None:
        self._console.print(line, soft_wrap=True, highlight=False, markup=False, emoji=False)


def spell_call(tool: str, arguments: Mapping[str, Any]) -> str:
    """A call as it would be written in Python."""
    given = ", ".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in arguments.items())
    return f"{tool}({given})"


def _shown(text: str) -> str:
    """Control characters other than line breaks, spelled out: none of them moves the cursor of a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


def _fold(line: str, width: int) -> Iterator[str]:
    """Cut one line into pieces of at most ``width`` columns, behind a space where there is one in their second half."""
    while cell_len(line) > width:
        piece = next(chop for chop in chop_cells(line, width) if chop)
        end = piece.rfind(" ") + 1
        piece = piece[:end] if end > len(piece) // 2 else piece
        yield piece
        line = line[len(piece) :]
    yield line


def _spell(row: Decision) -> str:
    """One row of the ledger as a sentence."""
    said = f"{row.moment.replace('-', ' the ')}, {row.rule} said {row.outcome}"
    if row.changed and isinstance(row.before, Fingerprint) and isinstance(row.after, Fingerprint):
        said += f", {row.before.size:,} characters became {row.after.size:,}"
    return f"{said}: {row.why}" if row.why else said
