"""The measurement of `outrider run` as an entry point: the command alone and behind it, by turns."""

from __future__ import annotations

import os

import pytest

from tests.bench.entry_point import COMMAND, ENTRY, Start, Times, first_output_s, measure


def test_both_ways_are_measured_by_turns_and_the_first_round_does_not_count() -> None:
    begun: list[list[str]] = []

    def start(command: list[str]) -> Start:
        begun.append(command)
        return ["echo", "begun"], os.environ

    times = measure(start, rounds=2)
    assert begun == [COMMAND, [*ENTRY, *COMMAND]] * 3
    assert (len(times.alone_s), len(times.behind_s)) == (2, 2)


def test_the_added_time_is_the_difference_of_the_medians() -> None:
    times = Times([0.1, 0.2, 9.0], [0.9, 0.7, 0.8])
    assert "| added | 0.60 (goal: 1.0 at most) |" in times.table()


@pytest.mark.parametrize("command", [["true"], ["sh", "-c", "echo begun; exit 3"]])
def test_a_command_that_fails_or_says_nothing_is_no_measurement(command: list[str]) -> None:
    with pytest.raises(RuntimeError, match="ended with"):
        first_output_s(command, os.environ)
