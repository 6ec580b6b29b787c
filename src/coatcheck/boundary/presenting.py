"""``present``: the model asks the host to show an artifact to the person.

Law (`reference/behaviour.md` 9.8): only what is known of the artifact is looked at, never its payload; the snapshot is
in the result; and what is not there is an error. How to show it is the host's business: it hears `ArtifactPresented`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from coatcheck.artifacts.ref import clean_ref, one_line
from coatcheck.boundary.context import ToolContext
from coatcheck.boundary.resolving import live_refs
from coatcheck.boundary.tool import tool
from coatcheck.errors import InvalidArtifact
from coatcheck.events import ArtifactPresented, ArtifactRefused

__all__ = ["present"]

_Ref = Annotated[str, msgspec.Meta(description="The ref, exactly as a ticket names it.")]
_As = Annotated[
    str,
    msgspec.Meta(description="In which form, for example 'table', 'chart', 'image' or 'download'.", max_length=64),
]
_Label = Annotated[str, msgspec.Meta(description="A title for the person.", max_length=256)]


@tool
async def present(ref: _Ref, as_: _As, ctx: ToolContext, label: _Label | None = None) -> dict[str, Any]:
    """Show a stored result to the person, without reading it yourself."""
    try:
        if not as_.strip():
            raise InvalidArtifact("as is blank: say in which form to show it, for example 'table'")
        one_line("as", as_)
        one_line("label", label or "")
    except InvalidArtifact:
        ctx.tell(ArtifactRefused, op="head", reason="invalid-input")
        raise
    if not ref.strip():
        ctx.tell(ArtifactRefused, op="head", reason="invalid-input")
        raise InvalidArtifact(f"ref is blank: say what to show. {await live_refs(ctx.artifacts)}")
    meta = await ctx.artifacts.head(clean_ref(ref))
    if meta is None:
        raise LookupError(f"There is nothing to show under this ref. {await live_refs(ctx.artifacts)}")
    shown = label if label is not None and label.strip() else meta.label
    snapshot: dict[str, Any] = {"kind": meta.kind, "mediaType": meta.media_type, "bytes": meta.bytes}
    if shown is not None:
        snapshot["label"] = shown
    ctx.tell(
        ArtifactPresented,
        ref=meta.ref,
        as_=as_,
        kind=meta.kind,
        media_type=meta.media_type,
        bytes=meta.bytes,
        label=shown,
    )
    return {"presented": True, "ref": meta.ref, "as": as_, "snapshot": snapshot}
