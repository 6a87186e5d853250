"""The goals of many nodes, what a run measured of each, and a picture of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.table import Table

from tests.bench.charts import charts, label


@dataclass(frozen=True, slots=True)
class Measured:
    """One goal. `goal`: the largest value that meets it, or the smallest where `at_least`. `detail`: what the value is
    to be judged by."""

    row: str
    what: str
    value: float
    goal: float
    unit: str = "x"
    at_least: bool = False
    detail: str = ""

    @property
    def met(self) -> bool:
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    @property
    def goal_shown(self) -> str:
        return f"{'>=' if self.at_least else '<='} {shown(self.goal, self.unit)}"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


def table(measured: Sequence[Measured]) -> Table:
    drawn = Table(title="many nodes, one cache")
    drawn.add_column("row", no_wrap=True)
    drawn.add_column("measured")
    drawn.add_column("value", justify="right", no_wrap=True)
    drawn.add_column("goal", justify="right", no_wrap=True)
    drawn.add_column("met", no_wrap=True)
    drawn.add_column("beside it")
    before = ""
    for one in measured:
        drawn.add_row(
            "" if one.row == before else one.row, one.what, shown(one.value, one.unit),
            one.goal_shown, "yes" if one.met else "[bold red]no[/]", one.detail,
        )  # fmt: skip
        before = one.row
    return drawn


def markdown(measured: Sequence[Measured]) -> str:
    """The table in Markdown."""
    lines = ["| row | what | goal | measured | met |", "| --- | --- | ---: | ---: | ---: |"]
    lines += [
        f"| `{one.row}` | {one.what} | {one.goal_shown} | {shown(one.value, one.unit)} | {'yes' if one.met else 'no'} |"
        for one in measured
    ]
    return "".join(f"{line}\n" for line in lines)


def shown(value: float, unit: str) -> str:
    if unit == "ms":
        return f"{value * 1e3:.2f} ms"
    if unit in ("points", "s", "%"):
        return f"{value:.1f} {unit}"
    if unit == "":
        return f"{value:.0f}"
    return f"{value:.3f} {unit}"


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


_COLUMNS = 3
_MET, _MISSED, _GOAL = "#30638e", "#d1495b", "#222222"
_SCALE = {"ms": 1e3}
_UNITS = {"x": "", "": "count"}
_WIDTH = 44
# The height of a chart, in bars, at least: a single one is no thicker than others.
_BARS = 3


def plot(measured: Sequence[Measured], path: Path) -> None:
    """A small chart for each row, with a bar and the goal of each value. A chart has one unit."""
    grouped: dict[tuple[str, str], list[Measured]] = {}
    for one in measured:
        grouped.setdefault((one.row, one.unit), []).append(one)
    with charts(path, len(grouped), _COLUMNS, (6.4, 2.2)) as axes:
        for ((row, unit), its), axis in zip(grouped.items(), axes, strict=True):
            scale = _SCALE.get(unit, 1.0)
            places = range(len(its))
            colours = [_MET if one.met else _MISSED for one in its]
            bars = axis.barh(places, [one.value * scale for one in its], height=0.6, color=colours)
            labels = [f"{shown(one.value, one.unit)} ({one.goal_shown})" for one in its]
            axis.bar_label(bars, labels, padding=5, fontsize=7)
            for place, one in zip(places, its, strict=True):
                axis.plot([one.goal * scale] * 2, [place - 0.42, place + 0.42], color=_GOAL, linewidth=1.5)
            axis.set_yticks(places, ["\n".join(wrap(one.what, _WIDTH)) for one in its])
            axis.set_ylim(max(len(its), _BARS) - 0.5, -0.5)
            axis.set_xlim(0, 1.45 * max(max(one.value, one.goal) * scale for one in its) or 1.0)
            label(axis, row, _UNITS.get(unit, unit))
