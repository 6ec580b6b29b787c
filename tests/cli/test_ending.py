"""How a command ended, in words and in numbers."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.cli.ending import MAX_TAIL_CHARS, Tail, describe_failure, exit_code, signal_name


def tail(*chunks: bytes) -> Tail:
    made = Tail()
    for chunk in chunks:
        made.add(chunk)
    return made


@pytest.mark.parametrize(("status", "code"), [(0, 0), (3, 3), (255, 255), (-15, 143), (-9, 137)])
def test_a_signal_is_128_and_its_number(status: int, code: int) -> None:
    assert exit_code(status) == code


def test_a_signal_without_a_name_has_its_number() -> None:
    assert signal_name(signal.SIGTERM) == "SIGTERM"
    assert signal_name(40) == "signal 40"


@given(st.lists(st.text(max_size=30), max_size=10), st.integers(0, 400))
def test_a_tail_is_the_end_of_the_whole_however_it_came(texts: list[str], times: int) -> None:
    whole = "".join(texts)
    data = (whole * times).encode()
    made = tail(*(data[start : start + 777] for start in range(0, len(data), 777)))
    assert made.size == len(data)
    assert made.text == (whole * times)[-MAX_TAIL_CHARS:]


def test_a_tail_of_wide_characters_begins_with_a_whole_one() -> None:
    made = tail(b"x" + "😀".encode() * 10_000)
    assert made.text == "😀" * MAX_TAIL_CHARS


def test_a_failure_shows_all_of_a_short_output_and_the_end_of_a_long_one() -> None:
    text = describe_failure("pytest", 1, None, tail(b"F\n1 failed\n"), tail(b"warning\n"))
    assert text == "pytest ended with exit status 1. Its standard output:\nF\n1 failed\nIts standard error:\nwarning"
    long = tail(b"".join(b"line %d\n" % number for number in range(100_000)))
    text = describe_failure("make", 2, None, long, tail())
    assert text.startswith(
        f"make ended with exit status 2. The last 4000 characters of its standard output, which is {long.size} bytes:\n"
    )
    assert text.endswith("line 99999\nIts standard error is empty.")
    assert len(text) < MAX_TAIL_CHARS + 300


def test_a_failure_says_what_ended_the_command() -> None:
    empty = tail()
    assert describe_failure("a", -9, None, empty, empty).startswith("a was ended by SIGKILL. ")
    assert describe_failure("a", -15, 1.5, empty, empty).startswith(
        "a did not end within 1.5 seconds and was stopped. "
    )
    assert "Its standard output is 3 bytes of binary, not shown." in describe_failure(
        "a", 1, None, tail(b"a\0b"), empty
    )
