"""What the shared strategies make is what coatcheck takes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import msgspec
from hypothesis import given

from coatcheck.artifacts.ref import check_kind, normalise_media_type
from coatcheck.scope import Scope
from coatcheck.testing.strategies import fields, json_values, kinds, media_types, payloads, scopes, texts


@given(kinds(), media_types(), scopes(), fields(), payloads(max_size=40), texts(max_size=3))
def test_every_example_is_well_formed(
    kind: str, media_type: str, scope: Scope, field: str, payload: bytes, text: str
) -> None:
    assert check_kind(kind) == kind
    assert normalise_media_type(media_type)
    assert scope.conversation
    assert Scope(conversation=field).conversation == field
    assert len(payload) <= 40
    assert len(text) <= 3
    assert text.encode().decode() == text


@given(json_values())
def test_json_values_come_back_unchanged(value: Any) -> None:
    assert msgspec.json.decode(msgspec.json.encode(value)) == value
    assert json.loads(json.dumps(value)) == value


def test_only_the_strategies_import_hypothesis() -> None:
    program = "import sys, coatcheck.testing; sys.exit('hypothesis' in sys.modules or 'pytest' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
