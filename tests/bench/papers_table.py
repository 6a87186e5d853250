"""One table for each paper of `tests.bench.papers`: the paper's figures beside those that were measured here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.bench.charts import charts, label

_COLUMNS = 2
_PAPER, _HERE, _OURS = "#8d99ae", "#30638e", "#d1495b"
# The name of each way of Outrider begins so.
_OUTRIDER = "Outrider"


@dataclass(frozen=True, slots=True)
class Figure:
    """`value`: in the table's unit; None: it is not known. `ratio`: to the column's first line; None: that of the
    values. `to`: the upper end, where a paper gives a range of ratios."""

    value: float | None = None
    ratio: float | None = None
    to: float | None = None


Cells = dict[str, Figure]
"""By the name of the column. A way was not measured in a column that is absent."""


@dataclass(frozen=True, slots=True)
class Line:
    """A way to the data."""

    way: str
    theirs: Cells
    here: Cells


@dataclass(frozen=True, slots=True)
class Table:
    """`what`: the figure, `form` its text (str.format). `compared`: the name of a comparison with the first line.
    `notes`: facts of the run that the figures are to be judged by."""

    name: str
    title: str
    what: str
    form: str
    compared: str
    lines: Sequence[Line]
    notes: Sequence[str] = ()

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The side ("theirs" or "here") and the name of each, in the order of their first line."""
        sides = {"theirs": [line.theirs for line in self.lines], "here": [line.here for line in self.lines]}
        return [
            (side, name) for side, of in sides.items() for name in dict.fromkeys(name for its in of for name in its)
        ]

    def figure(self, line: Line, column: tuple[str, str]) -> Figure | None:
        """With its ratio, where that can be known."""
        side, name = column
        cells = [line.theirs, self.lines[0].theirs] if side == "theirs" else [line.here, self.lines[0].here]
        found, base = (of.get(name) for of in cells)
        if found is None or found.ratio is not None or found.value is None or base is None or not base.value:
            return found
        return Figure(found.value, found.value / base.value)

    def cell(self, line: Line, column: tuple[str, str]) -> str:
        figure = self.figure(line, column)
        if figure is None:
            return ""
        texts = [] if figure.value is None else [self.form.format(figure.value)]
        if figure.ratio is not None and line is not self.lines[0]:
            compared = COMPARED[self.compared]
            upper = "" if figure.to is None else f" to {compared(figure.to)}"
            texts.append(f"{compared(figure.ratio)}{upper}")
        return ", ".join(texts)

    def markdown(self) -> str:
        """As docs/papers.md has it."""
        headings = [self.what, *(f"{'paper' if side == 'theirs' else 'here'}: {name}" for side, name in self.columns)]
        rows = [[line.way, *(self.cell(line, column) for column in self.columns)] for line in self.lines]
        rules = ["---", *("---:" for _ in self.columns)]
        drawn = [f"| {' | '.join(cells)} |" for cells in (headings, rules, *rows)]
        return "\n".join([f"**{self.title}**", "", *drawn, "", *(f"- {note}" for note in self.notes), ""])

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _times(ratio: float) -> str:
    return f"{ratio:.2f} x"


COMPARED: dict[str, Callable[[float], str]] = {"change": _change, "times": _times}
"""The texts of a ratio."""


def plot(table: Table, path: Path) -> None:
    """Columns of one name are a chart, with a bar for the ratio of each way: first those of the paper, then those from
    here."""
    of: dict[str, list[tuple[Line, tuple[str, str]]]] = {}
    for column in table.columns:
        of.setdefault(column[1], []).extend((line, column) for line in table.lines if table.cell(line, column))
    bars_most = max(map(len, of.values()))
    with charts(path, len(of), _COLUMNS, (7.5, 0.3 * bars_most + 0.8)) as axes:
        for (title, shown), axis in zip(of.items(), axes, strict=True):
            found = [table.figure(line, column) or Figure() for line, column in shown]
            ratios = [1.0 if its.ratio is None else its.ratio for its in found]
            bars = axis.barh(range(len(shown)), ratios, height=0.7, color=[_colour(*its) for its in shown])
            axis.bar_label(bars, [table.cell(*its) for its in shown], padding=4, fontsize=7)
            for place, its in enumerate(found):
                if its.ratio is not None and its.to is not None:
                    axis.plot([its.ratio, its.to], [place + 0.42] * 2, color=_HERE, linewidth=1.5)
            ways = [f"{line.way} (paper)" if side == "theirs" else line.way for line, (side, _) in shown]
            axis.set_yticks(range(len(shown)), ways)
            axis.set_ylim(bars_most - 0.5, -0.5)
            axis.set_xlim(0, 1.4 * max([*ratios, *(its.to or 0.0 for its in found)]))
            label(axis, title, f"{table.what}, x {table.lines[0].way}")


def _colour(line: Line, column: tuple[str, str]) -> str:
    return _PAPER if column[0] == "theirs" else _OURS if line.way.startswith(_OUTRIDER) else _HERE
