"""The tables and pictures of `make papers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench import papers_deli, papers_igear, papers_tdcs
from tests.bench.papers import PAPERS
from tests.bench.papers_table import Figure, Line, Table, plot
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

TABLE = Table(
    "name",
    "a paper",
    "wait",
    "{:.3g} s",
    "change",
    [
        Line("the bucket", {"all": Figure(200.0)}, {"A": Figure(80.0), "B": Figure(40.0)}),
        Line("theirs", {"all": Figure(50.0, 0.2, 0.3)}, {}),
        Line("Outrider", {}, {"A": Figure(20.0), "B": Figure(60.0)}),
        Line("another", {"all": Figure(50.0)}, {"B": Figure(ratio=2.0)}),
    ],
    ["a note"],
)


def test_each_figure_is_compared_with_the_first_line_of_its_column() -> None:
    assert TABLE.markdown().splitlines()[2:] == [
        "| wait | paper: all | here: A | here: B |",
        "| --- | ---: | ---: | ---: |",
        "| the bucket | 200 s | 80 s | 40 s |",
        "| theirs | 50 s, -80.0 % to -70.0 % |  |  |",
        "| Outrider |  | 20 s, -75.0 % | 60 s, +50.0 % |",
        "| another | 50 s, -75.0 % |  | +100.0 % |",
        "",
        "- a note",
    ]


def test_a_picture_has_each_figure(tmp_path: Path) -> None:
    plot(TABLE, tmp_path / "papers.svg")
    drawn = (tmp_path / "papers.svg").read_text()
    texts = (
        "all -->",
        "B -->",
        "theirs (paper) -->",
        "50 s, -80.0 % to -70.0 % -->",
        "60 s, +50.0 % -->",
        "another -->",
    )
    assert [text for text in texts if f"<!-- {text}" not in drawn] == []


def test_a_way_of_the_paper_is_beside_that_of_the_same_name_here() -> None:
    here = {papers_deli.DIRECT: {"MNIST": Figure(80.0)}, papers_deli.SEEDED: {"MNIST": Figure(8.0)}}
    lines = {line.way: line for line in papers_deli.compared(here, []).lines}
    assert lines[papers_deli.DIRECT] == Line(
        papers_deli.DIRECT, {"MNIST": Figure(772), "ResNet": Figure(641)}, here[papers_deli.DIRECT]
    )
    assert lines[papers_deli.SEEDED].theirs == {}


def test_the_first_epoch_stands_apart_from_the_mean_of_the_later_ones() -> None:
    gpu = {"direct": [0.4, 0.4, 0.4], "by itself": [0.4, 0.3, 0.5], "cluster": [0.4, 0.9, 1.0]}
    rows = [{"way": way, "epoch": number, "gpu": of} for way, its in gpu.items() for number, of in enumerate(its, 1)]
    table = papers_tdcs.compared({"there": papers_tdcs.simulated(rows)}, [])
    assert [line.rsplit(" | ", 2)[1:] for line in table.markdown().splitlines()[4:8]] == [
        ["40.0 %", "40.0 % |"],
        ["", " |"],
        ["40.0 %, 1.00 x", "40.0 %, 1.00 x |"],
        ["40.0 %, 1.00 x", "95.0 %, 2.38 x |"],
    ]


def test_a_way_that_failed_is_no_line_of_its_own() -> None:
    here = {papers_igear.DIRECT: {"1 GPU": Figure(100.0)}, papers_igear.OURS: {"1 GPU": Figure(110.0)}}
    lines = papers_igear.compared(here, []).markdown().splitlines()
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[4:8]] == [*papers_igear.PAPER, papers_igear.OURS]
    assert lines[7].endswith("| 110, +10.0 % |")


def test_the_page_shows_each_paper() -> None:
    page = (ROOT / "docs" / "papers.md").read_text()
    assert [name for name in PAPERS if f"papers-{name}.png" not in page] == []
