"""One picture of a run of `tests.bench.cluster`: a small chart for each row, with a bar and the goal of each value."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tests.bench.cluster_goals import Measured, shown

_COLUMNS = 3
_MET, _MISSED, _GOAL = "#30638e", "#d1495b", "#222222"
_SCALE = {"ms": 1e3}
_UNITS = {"x": "", "": "count"}
_WIDTH = 44


def plot(measured: Sequence[Measured], path: Path) -> None:
    """Write a PNG or SVG; the name's suffix decides. A chart has one unit."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    charts = [(key, list(its)) for key, its in groupby(measured, lambda one: (one.row, one.unit))]
    rows = max(1, -(-len(charts) // _COLUMNS))
    figure, axes = pyplot.subplots(rows, _COLUMNS, figsize=(6.4 * _COLUMNS, 2.2 * rows), squeeze=False)
    for axis in axes.flat[len(charts) :]:
        axis.set_axis_off()
    for ((row, unit), its), axis in zip(charts, axes.flat, strict=False):
        scale = _SCALE.get(unit, 1.0)
        places = range(len(its))
        bars = axis.barh(
            places, [one.value * scale for one in its], height=0.6,
            color=[_MET if one.met else _MISSED for one in its],
        )  # fmt: skip
        axis.bar_label(bars, [shown(one.value, one.unit) for one in its], padding=3, fontsize=8)
        for place, one in zip(places, its, strict=True):
            axis.plot([one.goal * scale] * 2, [place - 0.42, place + 0.42], color=_GOAL, linewidth=1.5)
            axis.annotate(
                ">" if one.at_least else "<", (one.goal * scale, place + 0.36), fontsize=7, ha="center", va="center"
            )
        axis.set_yticks(places, [_wrapped(one.what) for one in its])
        axis.invert_yaxis()
        axis.set_xlim(left=0)
        axis.set_title(row, fontsize=9)
        axis.set_xlabel(_UNITS.get(unit, unit), fontsize=8)
        axis.margins(x=0.2)
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _wrapped(text: str) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, _WIDTH))
