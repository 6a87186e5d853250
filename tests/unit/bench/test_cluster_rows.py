"""The table and the picture of `make bench-cluster`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench.cluster import ROWS
from tests.bench.cluster_goals import Measured, markdown, plot
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

MEASURED = [
    Measured("static", "bytes from the bucket / data", 0.0, 0.0),
    Measured("static", "bytes between nodes / data", 0.2, 0.1),
    Measured("simulated", "GPU utilisation", 98.3, 97.0, unit="%", at_least=True),
    Measured("simulated", "speed, x direct", 1.57, 5.0, at_least=True),
]


def test_each_value_is_shown_beside_its_goal() -> None:
    assert markdown(MEASURED).splitlines()[2:] == [
        "| `static` | bytes from the bucket / data | <= 0.000 x | 0.000 x | yes |",
        "| `static` | bytes between nodes / data | <= 0.100 x | 0.200 x | no |",
        "| `simulated` | GPU utilisation | >= 97.0 % | 98.3 % | yes |",
        "| `simulated` | speed, x direct | >= 5.000 x | 1.570 x | no |",
    ]
    assert [one.as_dict()["met"] for one in MEASURED] == [True, False, True, False]


def test_a_picture_has_each_value_and_its_row(tmp_path: Path) -> None:
    plot(MEASURED, tmp_path / "run.svg")
    drawn = (tmp_path / "run.svg").read_text()
    texts = ("static -->", "simulated -->", "0.200 x (", "98.3 % (", "1.570 x (")
    assert [text for text in texts if f"<!-- {text}" not in drawn] == []


def test_the_page_names_each_row() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert [row for row in ROWS if f"`{row}`" not in page] == []
