"""Draws a dataset as a string: one letter for each of its objects, or for each of a sample of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outrider.core.ahead.dataset.dataset import Dataset

CELLS_MAX = 512
# More names than this are not sorted: they stay in the order in which a LIST or a reader named them.
_SORTED_MAX = 4096
# Objects from whose sizes the size of a dataset is estimated, about.
_SAMPLED = 4096

CACHED, COMING, READ, ABSENT, BOTH = "c", "o", "r", "a", "R"
"""In this order: here and not read yet in this epoch; on its way, or here in part; read and evicted; neither; read and
here."""


def map_of(dataset: Dataset, is_coming: Callable[[int], bool]) -> str:
    """The letters in the order of the names. If there are more than `CELLS_MAX` objects, every n-th of them is drawn.
    `is_coming`: whether the object of this index is on its way."""
    indexes = _shown(dataset)
    newest = [job.epochs[-1] for job in dataset.jobs.values() if job.epochs]
    cells = []
    for index in indexes:
        # By any of the jobs: each has an epoch of its own.
        read = any(index < len(epoch.done) and not epoch.unread(index) for epoch in newest)
        cached = dataset.cached.get(index)
        if cached is not None and cached.present.bit_count() == cached.blocks:
            cells.append(BOTH if read else CACHED)
        elif is_coming(index) or (cached is not None and cached.present):
            cells.append(COMING)
        else:
            cells.append(READ if read else ABSENT)
    return "".join(cells)


def _shown(dataset: Dataset) -> list[int]:
    names = dataset.names
    count = len(names.keys)
    if count <= _SORTED_MAX:
        indexes: Sequence[int] = sorted(range(count), key=names.keys.__getitem__)
    else:
        indexes = names.listed if len(names.listed) == count else range(count)
    if count <= CELLS_MAX:
        return list(indexes)
    return [indexes[(2 * cell + 1) * count // (2 * CELLS_MAX)] for cell in range(CELLS_MAX)]


def data_bytes(dataset: Dataset) -> int:
    """The size of all its objects. For very many objects, or if some sizes are unknown, it is estimated by a sample."""
    sizes = dataset.names.sizes
    step = -(-len(sizes) // _SAMPLED) or 1
    known = [size for size in sizes[::step] if size >= 0]
    return round(sum(known) / len(known) * len(sizes)) if known else 0
