"""The table of trials, and the rule that `make soak` runs each test that has a long form."""

from __future__ import annotations

import re
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


def test_make_soak_runs_each_test_that_has_a_long_form() -> None:
    told = re.search(r"^TESTS \?= ((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert told is not None
    soaked = [ROOT / word for word in told[1].replace("\\", " ").split()]
    assert all(path.exists() for path in soaked)
    scaled = re.compile(r"^from tests\.support\.(fuzzing import|trials import .*(SCALE|rounds))", re.MULTILINE)
    with_long_form = [path for path in (ROOT / "tests").rglob("test_*.py") if scaled.search(path.read_text())]
    assert len(with_long_form) > 20
    assert [path for path in with_long_form if not any(path.is_relative_to(each) for each in soaked)] == []


def test_the_files_that_are_run_first_exist() -> None:
    assert [name for name in USUAL_SECONDS if not (ROOT / name).exists()] == []
