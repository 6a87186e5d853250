"""`outrider simulate --nodes N`: a job on many nodes, as one cache, each node by itself, and direct from the bucket."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from outrider.cli.load_settings import refused
from outrider.simulator.cluster import WAYS, ClusterSimulation, Nodes, Way
from outrider.simulator.run import Machine
from outrider.simulator.scenarios import JobSpec, OrderKind, Shards, order_of

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
    is_told: bool
    machine: Machine
    link_bytes_s: float
    connection_bytes_s: float

    def job(self) -> JobSpec:
        readers = self.nodes * self.gpus_per_node * self.readers
        order = order_of(self.order, list(range(self.shards.count)), readers, self.seed)
        return JobSpec(
            self.shards.name, self.shards, order, self.epochs, self.gpu_bytes_s / self.readers, told=self.is_told
        )

    def nodes_of(self, cache: float) -> Nodes:
        """Raises ValueError: a node has no room for a block."""
        room_bytes = int(cache * self.shards.count * self.shards.size / self.nodes)
        if room_bytes < self.machine.block_bytes:
            raise ValueError(f"--cache {cache:.0%}: each of {self.nodes} nodes must have room for a block")
        # The searches of all planners together take as long to simulate as those of one.
        step_s = self.machine.step_s * self.nodes
        machine = replace(self.machine, capacity_bytes=room_bytes, step_s=step_s)
        return Nodes(self.nodes, machine, self.link_bytes_s, self.connection_bytes_s)


def parse_rate(option: str, text: str) -> float:
    """Bytes a second, from a text such as `25Gbit`, `10GB/s` or `200MiB/s`. Raises ValueError."""
    match = _RATE.fullmatch(text.strip())
    found = 0.0 if match is None else float(match[1]) * _TIMES[match[2]] / (8 if match[3] == "bit" else 1)
    if found <= 0:
        raise ValueError(f"{option} {text}: must be bits or bytes a second, such as 25Gbit or 10GB/s, and more than 0")
    return found


def rows_of(question: ClusterQuestion, cache: float) -> list[ClusterRow]:
    """The epochs of all ways. Raises ValueError."""
    nodes, job = question.nodes_of(cache), question.job()
    epochs = {way: ClusterSimulation(nodes, way, job).run() for way in WAYS}
    return [
        ClusterRow(
            cache, way, epoch.read.number, epoch.utilisation, epoch.read.took_s, epoch.read.traffic,
            epoch.peer_traffic, direct.read.took_s / epoch.read.took_s,
        )
        for way in WAYS
        for epoch, direct in zip(epochs[way], epochs["direct"], strict=True)
    ]  # fmt: skip


def table(rows: list[ClusterRow]) -> str:
    lines = [_HEADINGS, *map(_words, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    return "\n".join("  ".join(word.rjust(width) for word, width in zip(line, widths, strict=True)) for line in lines)


def _words(row: ClusterRow) -> tuple[str, ...]:
    numbers = (f"{row.gpu:.3f}", f"{row.seconds:.1f}", f"{row.bucket:.3f}", f"{row.peers:.3f}", f"{row.speed:.2f}")
    return f"{row.cache:.0%}", row.way, str(row.epoch), *numbers


def plot(rows: list[ClusterRow], file: Path) -> None:
    """The epochs of one size of the cache, or the last epoch of several sizes. Raises typer.Exit: no matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise refused(ValueError("--plot needs matplotlib: pip install matplotlib")) from error
    is_sweep = len({row.cache for row in rows}) > 1
    last = max(row.epoch for row in rows)
    shown = [row for row in rows if not is_sweep or row.epoch == last]
    figure = Figure(figsize=(10, 4), layout="constrained")
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
