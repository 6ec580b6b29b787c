"""``coatcheck.__all__`` is the public face: sorted, complete and true."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

import coatcheck


def test_public_names_are_sorted_and_listed_once() -> None:
    # Upper case before lower case, as `sorted` has it: classes, then functions.
    assert list(coatcheck.__all__) == sorted(set(coatcheck.__all__))


def test_every_public_name_can_be_imported() -> None:
    missing = [name for name in coatcheck.__all__ if not hasattr(coatcheck, name)]
    assert missing == []


def test_no_public_name_is_a_module_or_private() -> None:
    wrong = [
        name
        for name in coatcheck.__all__
        if isinstance(getattr(coatcheck, name), types.ModuleType) or (name.startswith("_") and name != "__version__")
    ]
    assert wrong == []


def test_no_name_is_public_by_accident() -> None:
    visible = {
        name
        for name, value in vars(coatcheck).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    # `annotations` is what `from __future__ import annotations` leaves behind.
    assert visible - set(coatcheck.__all__) - {"annotations"} == set()


def test_a_star_import_gives_what_is_listed_and_nothing_else() -> None:
    namespace: dict[str, object] = {}
    exec("from coatcheck import *", namespace)
    assert sorted(namespace.keys() - {"__builtins__"}) == sorted(coatcheck.__all__)


def test_the_readers_are_there_when_they_are_asked_for_and_no_other_name_is() -> None:
    code = "import sys, coatcheck; assert 'coatcheck.readers' not in sys.modules; print(coatcheck.readers.tools)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50)
    assert "function tools" in done.stdout
    with pytest.raises(AttributeError, match="module 'coatcheck' has no attribute 'nothing'"):
        _ = coatcheck.nothing  # type: ignore[attr-defined]
