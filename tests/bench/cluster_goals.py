"""The goals of many nodes, and what a run measured of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table


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
    """The table as docs/benchmarks.md has it."""
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
