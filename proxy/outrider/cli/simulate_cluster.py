"""`outrider simulate --nodes N`: a job on many nodes, as one cache, each node by itself, and direct from the bucket."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from outrider.cli.load_settings import refused
from outrider.simulator.cluster import WAYS, ClusterSimulation, SimNodes, Way
from outrider.simulator.run import Machine
from outrider.simulator.scenarios import JobSpec, OrderKind, Shards, order_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from matplotlib.figure import Figure

AnyRow = TypeVar("AnyRow", bound="DataclassInstance")
_HEADINGS: tuple[str, ...] = ("cache", "way", "epoch", "GPU", "seconds", "bucket", "peers", "speed")
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(Ki|Mi|Gi|Ti|k|K|M|G|T|)(bit|B)(?:/s)?", re.ASCII)
_TIMES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
          "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """One line of the result. `cache`: the caches of all nodes together, as a part of the data. `gpu`: the part of the
    epoch's time for which the GPUs compute. `bucket`, `peers`: bytes from there, as a multiple of the data. `speed`:
    how many times as fast the epoch is as direct."""

    cache: float
    way: Way
    epoch: int
    gpu: float
    seconds: float
    bucket: float
    peers: float
    speed: float


@dataclass(frozen=True, slots=True)
class ClusterQuestion:
    """The input of a simulation. `readers`: loader workers for each GPU, which share its pace, `gpu_bytes_s`. `machine`
    has all but the size of its cache; its `origin_bytes_s` is the bucket's, for all nodes together."""

    nodes: int
    gpus_per_node: int
    readers: int
    gpu_bytes_s: float
    shards: Shards
    order: OrderKind
    epochs: int
    seed: int
    is_announced: bool
    machine: Machine
    link_bytes_s: float
    connection_bytes_s: float

    def job(self) -> JobSpec:
        readers = self.nodes * self.gpus_per_node * self.readers
        order = order_of(self.order, list(range(self.shards.count)), readers, self.seed)
        return JobSpec(
            self.shards.name,
            self.shards,
            order,
            self.epochs,
            self.gpu_bytes_s / self.readers,
            announced=self.is_announced,
        )

    def nodes_of(self, cache: float) -> SimNodes:
        """Raises ValueError: a node has no room for a block."""
        room_bytes = int(cache * self.shards.count * self.shards.size / self.nodes)
        if room_bytes < self.machine.block_bytes:
            raise ValueError(f"--cache {cache:.0%}: each of {self.nodes} nodes must have room for a block")
        # The searches of all planners together take as long to simulate as those of one.
        step_s = self.machine.step_s * self.nodes
        machine = replace(self.machine, capacity_bytes=room_bytes, step_s=step_s)
        return SimNodes(self.nodes, machine, self.link_bytes_s, self.connection_bytes_s)


def parse_rate(option: str, text: str) -> float:
    """Bytes a second, from a text such as `25Gbit`, `10GB/s` or `200MiB/s`. Raises ValueError."""
    match = _RATE.fullmatch(text.strip())
    found = 0.0 if match is None else float(match[1]) * _TIMES[match[2]] / (8 if match[3] == "bit" else 1)
    if found <= 0:
        raise ValueError(f"{option} {text}: must be bits or bytes a second, such as 25Gbit or 10GB/s, and more than 0")
    return found


def rows_of(question: ClusterQuestion, cache: float) -> Iterator[ClusterRow]:
    """The epochs of all ways, those of each way once it is simulated. Raises ValueError."""
    nodes, job = question.nodes_of(cache), question.job()
    directly = ClusterSimulation(nodes, "direct", job).run()
    for way in WAYS:
        epochs = directly if way == "direct" else ClusterSimulation(nodes, way, job).run()
        for epoch, direct in zip(epochs, directly, strict=True):
            yield ClusterRow(
                cache, way, epoch.read.number, epoch.utilisation, epoch.read.took_s, epoch.read.traffic,
                epoch.peer_traffic, direct.read.took_s / epoch.read.took_s,
            )  # fmt: skip


def answer(question: ClusterQuestion, caches: Sequence[float], as_json: bool, file: Path | None) -> None:
    """Print the rows, and plot them in `file`. Raises ValueError."""
    for cache in caches:
        question.nodes_of(cache)  # before anything is printed
    rows = (row for cache in caches for row in rows_of(question, cache))
    found = printed(rows, None if as_json else (_HEADINGS, ("100%", max(WAYS, key=len)), _words))
    if file is not None:
        plot(found, file)


def printed(
    rows: Iterable[AnyRow], form: tuple[Sequence[str], Sequence[str], Callable[[AnyRow], Sequence[str]]] | None
) -> list[AnyRow]:
    """Print `rows` as a table: the headings at once, and each row when it is known, since a simulation may take
    minutes. Returns the rows.

    `form`: the headings, a word as wide as any in each of the first columns, whose other headings are wide enough, and
    the words of a row. None: JSON, once all are known.
    """
    if form is None:
        found = list(rows)
        typer.echo(json.dumps([asdict(row) for row in found]))
        return found
    headings, widest, words_of = form
    widths = [max(map(len, words)) for words in zip_longest(headings, widest, fillvalue="")]

    def show(words: Sequence[str]) -> None:
        typer.echo("  ".join(word.rjust(width) for word, width in zip(words, widths, strict=True)))

    show(headings)
    found = []
    for row in rows:
        show(words_of(row))
        found.append(row)
    return found


def _words(row: ClusterRow) -> tuple[str, ...]:
    numbers = (f"{row.gpu:.3f}", f"{row.seconds:.1f}", f"{row.bucket:.3f}", f"{row.peers:.3f}", f"{row.speed:.2f}")
    return f"{row.cache:.0%}", row.way, str(row.epoch), *numbers


def new_figure(width: float, height: float) -> Figure:
    """In inches. Raises typer.Exit: no matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise refused(ValueError("--plot needs matplotlib: pip install matplotlib")) from error
    return Figure(figsize=(width, height), layout="constrained")


def plot(rows: list[ClusterRow], file: Path) -> None:
    """The epochs of one size of the cache, or the last epoch of several sizes. Raises typer.Exit: no matplotlib."""
    is_sweep = len({row.cache for row in rows}) > 1
    last = max(row.epoch for row in rows)
    shown = [row for row in rows if not is_sweep or row.epoch == last]
    figure = new_figure(10, 4)
    busy, traffic = figure.subplots(1, 2)
    for way in WAYS:
        own = [row for row in shown if row.way == way]
        places = [100 * row.cache if is_sweep else row.epoch for row in own]
        busy.plot(places, [100 * row.gpu for row in own], "o-", label=way)
        traffic.plot(places, [row.bucket for row in own], "o-", label=way)
    where = f"caches of all nodes, % of the data (epoch {last})" if is_sweep else "epoch"
    busy.set(xlabel=where, ylabel="GPU utilisation, %", ylim=(0, 103))
    traffic.set(xlabel=where, ylabel="bytes from the bucket, x the data", ylim=(0, None))
    for axes in (busy, traffic):
        axes.set_xticks(sorted(set(places)))
        axes.legend()
    figure.savefig(file)
