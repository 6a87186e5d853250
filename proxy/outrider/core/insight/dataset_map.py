"""A dataset at a glance: a string with a letter for each of its objects, or for a sample of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outrider.core.ahead.dataset.dataset import Dataset

CELLS_MAX = 512
# More names than this are not put in the order of their names, but in the order in which a LIST or a reader told them.
_SORTED_MAX = 4096
_SAMPLED = 4096

CACHED, COMING, READ, ABSENT, BOTH = "c", "o", "r", "a", "R"
"""Here and not read yet in this epoch; on its way, or here in part; read and gone; neither; read and here."""


def shard_map(dataset: Dataset, is_coming: Callable[[int], bool]) -> str:
    """In the order of the names; where there are more than `CELLS_MAX`, every n-th of them."""
    keys = _some_keys(dataset)
    newest = [job.epochs[-1] for job in dataset.jobs.values() if job.epochs]
    cells = []
    for key in keys:
        # Any of the jobs: each has an epoch of its own.
        read = any(key < len(one.done) and not one.unread(key) for one in newest)
        cached = dataset.cached.get(key)
        if cached is not None and cached.present.bit_count() == cached.blocks:
            cells.append(BOTH if read else CACHED)
        elif is_coming(key) or (cached is not None and cached.present):
            cells.append(COMING)
        else:
            cells.append(READ if read else ABSENT)
    return "".join(cells)


def _some_keys(dataset: Dataset) -> list[int]:
    names = dataset.names
    count = len(names.keys)
    if count <= _SORTED_MAX:
        keys: Sequence[int] = sorted(range(count), key=names.keys.__getitem__)
    else:
        keys = names.listed if len(names.listed) == count else range(count)
    if count <= CELLS_MAX:
        return list(keys)
    return [keys[(2 * cell + 1) * count // (2 * CELLS_MAX)] for cell in range(CELLS_MAX)]


def data_bytes(dataset: Dataset) -> int:
    """Of all its objects; of very many, and of those whose size is not known yet, as a sample has it."""
    sizes = dataset.names.sizes
    step = -(-len(sizes) // _SAMPLED) or 1
    known = [size for size in sizes[::step] if size >= 0]
    return round(sum(known) / len(known) * len(sizes)) if known else 0
