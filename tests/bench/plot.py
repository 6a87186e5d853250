"""One picture of a run: a small chart of bars for each load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench.targets import DIRECT, OUTRIDER, SIGV4, STATIC

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bench.loads import Load
    from tests.bench.results import Results

_COLUMNS = 3
_UNITS = {"mb_s": ("MB/s", 1.0), "req_s": ("requests/s", 1.0), "p50_s": ("ms, less is better", 1e3)}
_COLOURS = {OUTRIDER: "#d1495b", SIGV4: "#e39aa5", STATIC: "#8d99ae", DIRECT: "#8d99ae"}
_PEER = "#30638e"


def plot(results: Results, loads: list[Load], path: Path) -> None:
    """Write a PNG or SVG; the name's suffix decides."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    shown = [load for load in loads if results.targets(load.name)]
    rows = max(1, -(-len(shown) // _COLUMNS))
    figure, axes = pyplot.subplots(rows, _COLUMNS, figsize=(5.2 * _COLUMNS, 2.4 * rows), squeeze=False)
    for axis in axes.flat[len(shown) :]:
        axis.set_axis_off()
    for load, axis in zip(shown, axes.flat, strict=False):
        unit, scale = _UNITS[load.figure]
        measured = results.targets(load.name)
        names = [name for name in reversed(load.targets) if name in measured]
        values = [(results.median(load.name, name, load.figure) or 0.0) * scale for name in names]
        bars = axis.barh(names, values, color=[_COLOURS.get(name, _PEER) for name in names])
        axis.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
        axis.set_title(load.title, fontsize=9)
        axis.set_xlabel(unit, fontsize=8)
        axis.margins(x=0.15)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
