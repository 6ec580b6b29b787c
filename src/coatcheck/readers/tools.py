"""The readers as tools: what a model calls to use what was placed.

They are ordinary tools, so rules, the ledger and timeouts apply; their results are never placed, and each keeps its
own bound in characters.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any

from msgspec import Meta

from coatcheck.artifacts.port import ArtifactReader
from coatcheck.boundary.context import ToolContext
from coatcheck.boundary.tool import Tool, tool
from coatcheck.errors import ConfigurationError, InvalidRange
from coatcheck.readers.answers import DEFAULT_MAX_CHARS, LARGEST_MAX_CHARS, SMALLEST_MAX_CHARS, TextPage
from coatcheck.readers.matching import has_re2
from coatcheck.readers.query_tool import has_jmespath, query_tool
from coatcheck.readers.reading import read_page
from coatcheck.readers.refs import Opener, ReaderError, clean_ref, missing
from coatcheck.readers.searching import (
    DEFAULT_MAX_MATCHES,
    LARGEST_CONTEXT,
    LARGEST_MAX_MATCHES,
    Found,
    render,
    search,
)
from coatcheck.settings import check_whole

__all__ = ["read_tool", "reader_names", "search_tool", "tools"]

_NAMES = ("read_artifact", "search_artifact", "query_artifact")
_Ref = Annotated[str, Meta(description="The ref, exactly as the ticket has it: art_ and 32 letters and digits.")]
_From = Annotated[
    int,
    Meta(
        description="A byte, as an earlier answer gave it: the first of `lines` or `chars` goes on there, so that "
        "nothing before it need be read."
    ),
]


def tools(
    *, max_chars: int = DEFAULT_MAX_CHARS, query: bool = True, taken: Collection[str] = ()
) -> list[Tool[..., Any]]:
    """The readers, to be given to a `Boundary` beside the host's own tools.

    Args:
        max_chars: how many characters one answer has at most, from 2,000 to 100,000.
        query: whether to offer ``query_artifact`` too.
        taken: names that the host's own tools have; a reader of such a name is called ``coatcheck_`` and its name.

    Raises:
        ConfigurationError: a setting that cannot be honoured, or the extra ``readers`` is not installed.
    """
    limit = check_whole("readers.tools(max_chars)", max_chars)
    if not SMALLEST_MAX_CHARS <= limit <= LARGEST_MAX_CHARS:
        raise ConfigurationError(
            f"readers.tools(max_chars) must be from {SMALLEST_MAX_CHARS} to {LARGEST_MAX_CHARS}, not {limit}"
        )
    if not has_re2():
        raise ConfigurationError("readers.tools() needs RE2 for regular expressions: install coatcheck[readers]")
    reading, searching, asking = reader_names(taken)
    readers = [read_tool(reading, limit), search_tool(searching, reading, limit)]
    if query:
        if not has_jmespath():
            raise ConfigurationError("query_artifact needs jmespath: install coatcheck[readers], or say query=False")
        readers.append(query_tool(asking, limit))
    return readers


def reader_names(taken: Collection[str] = ()) -> tuple[str, str, str]:
    """What the readers are called beside tools that have the names ``taken``: to read, to search, to query."""
    read, find, ask = (f"coatcheck_{name}" if name in taken else name for name in _NAMES)
    return read, find, ask


def read_tool(name: str, max_chars: int) -> Tool[..., Any]:
    """``read_artifact``, under a name and with a bound."""

    async def read_artifact(
        ref: _Ref,
        ctx: ToolContext,
        lines: Annotated[str, Meta(description='Lines A:B, counted from 1, B included: "100:200", "100:" or ":50".')]
        | None = None,
        chars: Annotated[str, Meta(description='Characters A:B, counted from 0, B not included: "0:4000".')]
        | None = None,
        bytes: Annotated[str, Meta(description='Bytes A:B, counted from 0, B not included: "0:4000".')] | None = None,
        head: Annotated[int, Meta(description="So many lines from the start.")] | None = None,
        tail: Annotated[int, Meta(description="So many lines up to the end.")] | None = None,
        path: Annotated[
            str,
            Meta(description="Of JSON: the one value at this path, as in $.rows[3].mean; indices count from 0."),
        ]
        | None = None,
        from_byte: _From | None = None,
    ) -> str:
        clean = clean_ref(ref)
        try:
            page = await read_page(
                _opener(ctx, clean),
                lines=lines,
                chars=chars,
                bytes=bytes,
                head=head,
                tail=tail,
                path=path,
                from_byte=from_byte,
                max_chars=max_chars,
            )
        except InvalidRange as error:
            raise ReaderError(str(error)) from None
        if page is None:
            raise ReaderError(await missing(ctx.artifacts))
        return page.render(ctx.readers.get("read", name), clean) if isinstance(page, TextPage) else page

    description = (
        "Read a part of a stored result that a ticket names. Give the ref and at most one of lines, chars, bytes, "
        "head, tail or path; without any it reads from the start. An answer has at most "
        f"{max_chars} characters, and says how much is left and the exact call that reads on. What is no text is "
        "described."
    )
    return tool(name=name, description=description, reader="read", answers_within=max_chars)(read_artifact)


def search_tool(name: str, reading: str, max_chars: int) -> Tool[..., Any]:
    """``search_artifact``, under a name and with a bound.

    Args:
        name: what it is called.
        reading: what ``read_artifact`` is called.
        max_chars: how many characters one answer has at most.
    """

    async def search_artifact(
        ref: _Ref,
        pattern: Annotated[
            str,
            Meta(
                description="A regular expression (RE2: no lookaround, no backreferences) that is looked for within "
                "each line."
            ),
        ],
        ctx: ToolContext,
        literal: Annotated[bool, Meta(description="Look for the pattern itself, letter by letter.")] = False,
        ignore_case: Annotated[bool, Meta(description="Upper and lower case are the same.")] = False,
        context: Annotated[
            int, Meta(description=f"So many lines around each match are shown too, at most {LARGEST_CONTEXT}.")
        ] = 0,
        max_matches: Annotated[
            int, Meta(description=f"The search ends after so many matches, at most {LARGEST_MAX_MATCHES}.")
        ] = DEFAULT_MAX_MATCHES,
        from_byte: Annotated[int, Meta(description="Search from this byte on, as an earlier answer gave it.")] = 0,
        from_line: Annotated[
            int, Meta(description="The number of the line at from_byte, as an earlier answer gave it.")
        ]
        | None = None,
    ) -> str:
        clean = clean_ref(ref)
        found = await search(
            _opener(ctx, clean),
            pattern,
            literal=literal,
            ignore_case=ignore_case,
            context=context,
            max_matches=max_matches,
            from_byte=from_byte,
            from_line=from_line,
            max_chars=max_chars,
        )
        if found is None:
            raise ReaderError(await missing(ctx.artifacts))
        if not isinstance(found, Found):
            return found
        call: dict[str, Any] = {"pattern": pattern}
        call |= {"literal": True} if literal else {}
        call |= {"ignore_case": True} if ignore_case else {}
        call |= {"context": context} if context else {}
        call |= {"max_matches": max_matches} if max_matches != DEFAULT_MAX_MATCHES else {}
        called, reader = ctx.readers.get("search", name), ctx.readers.get("read", reading)
        return render(found, tool=called, reader=reader, ref=clean, call=call, max_chars=max_chars)

    description = (
        "Find the lines of a stored result that match a pattern, without reading the rest of it. Each comes with its "
        f"line number and a byte from which {reading} reads on. An answer has at most {max_chars} characters, and says "
        "whether all was searched and the exact call that searches on. Whatever its size, it is searched in time "
        "linear in it."
    )
    return tool(name=name, description=description, reader="search", answers_within=max_chars)(search_artifact)


def _opener(ctx: ToolContext, ref: str) -> Opener:
    def open_(start: int, end: int | None) -> AbstractAsyncContextManager[ArtifactReader | None]:
        return ctx.artifacts.open(ref, start, end)

    return open_
