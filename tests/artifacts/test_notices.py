"""What a store tells when nobody waits: everyone who listens hears it, and nobody is felt."""

from __future__ import annotations

import logging

import pytest

from coatcheck.artifacts.notices import Notice, Notices, UploadFailed, UploadLeft

LEFT = UploadLeft(upload_id="u-1", detail="503")
FAILED = UploadFailed(ref="art_" + "0" * 32, kind="test/item", bytes=7, detail="StoreUnavailable: full")


def test_a_notice_is_heard_by_everyone_who_listens_in_order_until_they_stop() -> None:
    notices, heard = Notices(), list[tuple[str, Notice]]()
    stop_first = notices.listen(lambda notice: heard.append(("first", notice)))
    notices.listen(lambda notice: heard.append(("second", notice)))
    notices.tell(LEFT)
    stop_first()
    stop_first()
    notices.tell(FAILED)
    assert heard == [("first", LEFT), ("second", LEFT), ("second", FAILED)]


def test_a_callback_that_listens_twice_is_two_listeners() -> None:
    notices, heard = Notices(), list[Notice]()
    stops = [notices.listen(heard.append) for _ in range(2)]
    notices.tell(LEFT)
    stops[0]()
    stops[0]()
    notices.tell(FAILED)
    assert heard == [LEFT, LEFT, FAILED]


def test_a_listener_that_raises_is_logged_and_not_felt(caplog: pytest.LogCaptureFixture) -> None:
    notices, heard = Notices(), list[Notice]()

    def broken(notice: Notice) -> None:
        raise ValueError("no pager")

    notices.listen(broken)
    notices.listen(heard.append)
    with caplog.at_level(logging.ERROR, "coatcheck"):
        notices.tell(LEFT)
    assert heard == [LEFT]
    assert "a listener to the store's notices raised on UploadLeft" in caplog.text


def test_who_stops_while_a_notice_is_told_hears_it_and_no_other() -> None:
    notices, heard = Notices(), list[Notice]()
    stops = [notices.listen(lambda notice: [stop() for stop in stops]), notices.listen(heard.append)]
    notices.tell(LEFT)
    notices.tell(FAILED)
    assert heard == [LEFT]
