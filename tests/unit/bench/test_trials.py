"""The table of what was tried."""

from __future__ import annotations

from tests.support.trials import Trials


def test_a_row_tells_how_often_what_was_seen_and_what_was_lost() -> None:
    trials = Trials()
    trials.record("origin", "reset in mid-body", "the right bytes", times=1200)
    trials.record("origin", "reset in mid-body", "a broken connection", lost=1)
    trials.record("disk", "full", "the right bytes")
    assert trials.table()[2:] == [
        "| disk | full | 1 | the right bytes | 0 |",
        "| origin | reset in mid-body | 1,201 | the right bytes 1,200, a broken connection 1 | 1 |",
    ]


def test_nothing_tried_is_no_table() -> None:
    assert Trials().table() == []
