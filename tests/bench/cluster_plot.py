"""One picture of a run of `tests.bench.cluster`: a small chart for each row, with a bar and the goal of each value."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

from tests.bench.cluster_goals import Measured, shown

_COLUMNS = 3
_MET, _MISSED, _GOAL = "#30638e", "#d1495b", "#222222"
_SCALE = {"ms": 1e3}
_UNITS = {"x": "", "": "count"}
_WIDTH = 44
# The height of a chart, in bars, at least: a single one is no thicker than others.
_BARS = 3


def plot(measured: Sequence[Measured], path: Path) -> None:
    """Write a PNG or SVG; the name's suffix decides. A chart has one unit."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    grouped: dict[tuple[str, str], list[Measured]] = {}
    for one in measured:
        grouped.setdefault((one.row, one.unit), []).append(one)
    charts = list(grouped.items())
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
        labels = [f"{shown(one.value, one.unit)} ({one.goal_shown})" for one in its]
        axis.bar_label(bars, labels, padding=5, fontsize=7)
        for place, one in zip(places, its, strict=True):
            axis.plot([one.goal * scale] * 2, [place - 0.42, place + 0.42], color=_GOAL, linewidth=1.5)
        axis.set_yticks(places, ["\n".join(wrap(one.what, _WIDTH)) for one in its])
        axis.set_ylim(max(len(its), _BARS) - 0.5, -0.5)
        longest = max(max(one.value, one.goal) * scale for one in its)
        axis.set_xlim(0, 1.45 * longest or 1.0)
        axis.set_title(row, fontsize=9)
        axis.set_xlabel(_UNITS.get(unit, unit), fontsize=8)
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
