"""The table of trials."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import USUAL_SECONDS
from tests.support.trials import Trials

ROOT = Path(__file__).parents[3]


def test_a_row_counts_the_outcomes_and_the_losses() -> None:
    trials = Trials()
    trials.record("origin", "reset in mid-body", "the right bytes", times=1200)
    trials.record("origin", "reset in mid-body", "a broken connection", lost=1)
    trials.record("disk", "full", "the right bytes")
    assert trials.table()[2:] == [
        "| disk | full | 1 | the right bytes | 0 |",
        "| origin | reset in mid-body | 1,201 | the right bytes 1,200, a broken connection 1 | 1 |",
    ]


def test_without_a_trial_there_is_no_table() -> None:
    assert Trials().table() == []


def test_the_files_that_are_run_first_exist() -> None:
    assert [name for name in USUAL_SECONDS if not (ROOT / name).exists()] == []
