"""Commands say what is not there by a word: `0 of 0 objects, 0 B of 0 B` is no sentence."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from outrider.cli import control_client
from outrider.core.text import part_of


@pytest.mark.parametrize(
    ("count", "whole", "words"),
    [(0, 0, "no object"), (0, 1, "none of 1 object"), (1, 1, "1 of 1 object"), (0, 3, "none of 3 objects")],
)
def test_a_part_in_words(count: int, whole: int, words: str) -> None:
    assert part_of(count, whole, "object") == words


def report(on_disk: int, wanted: int, size: int = 0, fetched: int = 0, **more: Any) -> dict[str, Any]:
    """`size`: the bytes on disk, which are all that are wanted."""
    return {
        "name": "mine", "state": "failed", "objects": {"on_disk": on_disk, "wanted": wanted, "failed": 0},
        "bytes": {"on_disk": size, "wanted": size, "fetched": fetched}, "failures": [], "elapsed_s": 0.0,
        "rate_bytes_per_s": 0, "eta_s": None, "listing": True, **more,
    }  # fmt: skip


NOTHING, NONE, SOME = report(0, 0), report(0, 3), report(2, 3, size=5_000, fetched=2_000)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (NOTHING, "no object"), (NONE, "none of 3 objects"), (SOME, "2 of 3 objects, 5.0 kB of 5.0 kB"),
        (report(1, 1, reserved_bytes=0), "1 of 1 object"),
        (report(1, 1, 10, reserved_bytes=4096), "1 of 1 object, 10 B of 10 B, 4.1 kB reserved"),
    ],
)  # fmt: skip
def test_a_job_in_the_list(job: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    control_client.show(job, False)
    assert capsys.readouterr().out == f"mine  failed  {words}\n"


def test_a_job_that_lists_its_prefix_looks_for_its_objects(capsys: pytest.CaptureFixture[str]) -> None:
    control_client.show(NOTHING | {"state": "running"}, False)
    assert capsys.readouterr().out == "mine  running  looks for the objects\n"


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (NOTHING, "no object"), (NONE, "none of 3 objects on disk"),
        (SOME, "2 of 3 objects on disk, 5.0 kB (3.0 kB were there before)"),
        (report(1, 1, size=10, fetched=10), "1 of 1 object on disk, 10 B"),
        # An object that was fetched again, since it changed.
        (report(1, 1, size=10, fetched=20), "1 of 1 object on disk, 10 B"),
    ],
)  # fmt: skip
def test_the_end_of_a_job(job: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        control_client.conclude(job, False)
    assert capsys.readouterr().out == f"failed: {words}, in 0.0 s\n"


def test_the_progress_before_an_object_is_known() -> None:
    assert control_client.progress_in_words(NOTHING) == "looks for the objects"
    assert control_client.progress_in_words(NONE) == "0/3+ objects, 0 B, 0 B/s"
