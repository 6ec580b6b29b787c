"""Every static sentence that the library puts beside a result, published as data.

Tools in other languages that mint the same shapes carry the same sentences, byte for byte. None of them is ever
interpolated: nothing of a caller's is in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from coatcheck.results.absence import ABSENCE_NOTE
from coatcheck.results.coverage import COVERAGE_NOTE

__all__ = ["NOTES"]

NOTES: Final[Mapping[str, str]] = MappingProxyType({"absence": ABSENCE_NOTE, "coverage": COVERAGE_NOTE})
