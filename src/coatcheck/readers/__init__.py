"""Readers: what a model uses a placed result with, each within its own bound.

``Boundary([*my_tools, *coatcheck.readers.tools()], placement=...)``

The readers are built on ranged reads of the store's port, and on nothing else. Their cores take only what opens an
artifact, and serve the shell too.
"""

from __future__ import annotations

from coatcheck.readers.answers import TextPage
from coatcheck.readers.reading import read_page
from coatcheck.readers.refs import Opener, ReaderError, clean_ref, missing
from coatcheck.readers.scanning import Hit
from coatcheck.readers.searching import Found, search
from coatcheck.readers.tools import tools

__all__ = [
    "Found",
    "Hit",
    "Opener",
    "ReaderError",
    "TextPage",
    "clean_ref",
    "missing",
    "read_page",
    "search",
    "tools",
]
