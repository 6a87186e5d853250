"""Pictures of runs: charts of horizontal bars beside each other, in rows."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def charts(path: Path, count: int, columns: int, size_inches: tuple[float, float]) -> Iterator[list[Any]]:
    """The axes of `count` charts, each of this size. Writes a PNG or SVG at the end; the name's suffix decides."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    rows = max(1, -(-count // columns))
    width, height = size_inches
    figure, axes = pyplot.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False)
    for axis in axes.flat[count:]:
        axis.set_axis_off()
    shown = list(axes.flat[:count])
    yield shown
    for axis in shown:
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def label(axis: Any, title: str, unit: str, *, points: float = 7) -> None:
    """`points`: of the ticks' labels and the unit."""
    axis.set_title(title, fontsize=9)
    axis.set_xlabel(unit, fontsize=points)
    axis.tick_params(labelsize=points)
