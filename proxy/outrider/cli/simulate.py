"""`outrider simulate`: runs the proxy's own policy over a job in virtual time, to find how large a cache it needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli import simulate_cluster
from outrider.cli.load_settings import refused
from outrider.settings import parse_bytes
from outrider.simulator.logs import requests_of
from outrider.simulator.optimal import optimal_hits
from outrider.simulator.run import EpochResult, Machine, Simulation
from outrider.simulator.scenarios import ORDERS, JobSpec, OrderKind, Request, Shards, order_of

POLICIES = ("epoch", "lru", "fifo", "none")
_HEADINGS = ("cache", "policy", "job", "epoch", "hits", "traffic", "stall", "waste")


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One line of the result. Ratios are parts of 1; None: not defined for this policy.

    `cache` is the size of the cache as a part of the data.
    """

    cache: float
    policy: str
    job: str
    epoch: int
    hits: float
    traffic: float
    stall: float | None
    waste: float | None


@dataclass(frozen=True, slots=True)
class Question:
    """The input of a simulation: made-up jobs or logged requests, and the machine except for the size of its cache."""

    jobs: list[JobSpec]
    requests: list[Request]
    data_bytes: int
    origin_bytes_s: float
    latency_s: float
    block_bytes: int
    listing: bool
    prefetch: bool

    def machine(self, cache: float) -> Machine:
        return Machine(int(cache * self.data_bytes), self.origin_bytes_s, self.latency_s, self.block_bytes,
                       prefetch=self.prefetch, listing=self.listing)  # fmt: skip


def simulate(
    context: typer.Context,
    log: Annotated[
        Path | None, typer.Argument(help="JSON log of a proxy, whose requests are replayed; default: a made-up job.")
    ] = None,
    shards: Annotated[int, typer.Option(min=1, help="Shards in the dataset.")] = 1000,
    size: Annotated[str, typer.Option(help="Size of a shard.", metavar="BYTES")] = "64MiB",
    readers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Loader workers, each with its own part of the shards (8); with --nodes, those of a GPU (4)."
        ),
    ] = None,
    order: Annotated[str, typer.Option(help="Order of reads.", metavar="|".join(ORDERS))] = "repeated",
    cache: Annotated[
        str, typer.Option(help="Size of the cache as a share of the data; several make a sweep.", metavar="%,%,...")
    ] = "25%",
    bandwidth: Annotated[
        str, typer.Option(help="Bandwidth of the origin: bytes a second, or a multiple of the jobs' read rate.")
    ] = "1.3x",
    latency: Annotated[float, typer.Option(min=0, help="Latency of each block from the origin, in seconds.")] = 0.05,
    compute: Annotated[
        str, typer.Option(help="Bytes that one reader consumes in a second.", metavar="BYTES")
    ] = "50MiB",
    epochs: Annotated[int, typer.Option(min=1)] = 3,
    jobs: Annotated[int, typer.Option(min=1, max=16, help="Jobs over the same dataset.")] = 1,
    lag: Annotated[int, typer.Option(min=0, help="Shards by which each job starts after the previous one.")] = 50,
    switch: Annotated[bool, typer.Option("--switch", help="Afterwards, as many epochs over another dataset.")] = False,
    announced: Annotated[
        bool, typer.Option("--announced", "--told", help="The order is announced as each epoch begins.")
    ] = False,
    listing: Annotated[bool, typer.Option("--list/--no-list", help="The bucket may be listed.")] = True,
    prefetch: Annotated[
        bool, typer.Option("--prefetch/--no-prefetch", help="The policy epoch prefetches; without, it only evicts.")
    ] = True,
    block_size: Annotated[str, typer.Option(metavar="BYTES")] = "8MiB",
    policy: Annotated[str, typer.Option(help="Policies to compare.")] = "epoch,lru,fifo,none,opt",
    seed: Annotated[int, typer.Option(help="Seed of the made-up order.")] = 1,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="A job on so many nodes; --cache is that of all of them together.")
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="With --nodes.")] = 8,
    images: Annotated[float, typer.Option(help="Images that a GPU takes a second; with --nodes.")] = 1100.0,
    image_size: Annotated[str, typer.Option(help="With --nodes.", metavar="BYTES")] = "110kB",
    link: Annotated[str, typer.Option(help="Link of a node, each way; with --nodes.", metavar="RATE")] = "25Gbit",
    bucket: Annotated[
        str, typer.Option(help="Bandwidth of the bucket for all nodes; with --nodes.", metavar="RATE")
    ] = "10GB/s",
    connection: Annotated[
        str, typer.Option(help="Bandwidth of one GET of the bucket; with --nodes.", metavar="RATE")
    ] = "80MB/s",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array instead of a table.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="File for a plot of the results by cache size or epoch; needs matplotlib.")
    ] = None,
) -> None:
    """Run the proxy's own policy and others over a job in virtual time, and print the results of each epoch.

    hits: the whole shard was in the cache when its reader requested it; a shard on its way is no hit.

    traffic: bytes from the origin as a share of the dataset. stall: the share of the time that readers waited.

    waste: prefetched, but evicted unread. opt: the best that eviction alone could do. Examples:

    \b
    outrider simulate --cache 10%,25%,50%
    outrider simulate --order fresh --policy epoch,lru --plot hits.png
    outrider simulate proxy.log --cache 5%,10%,20% --bandwidth 200MiB
    outrider simulate --nodes 16 --gpus-per-node 8 --link 25Gbit --bucket 10GB/s

    With --nodes the results are those of one cache of all nodes, of each node by itself, and direct from the bucket.

    GPU: the share of the epoch's time for which the GPUs compute. speed: times direct.

    bucket, peers: bytes from there, as multiples of the dataset.
    """
    try:
        _check_use(context, is_cluster=nodes is not None)
        if not math.isfinite(latency):
            raise ValueError(f"--latency {latency}: must be a number of seconds")
        caches = [_part(text) for text in cache.split(",")]
        policies = _policies(policy)
        kind = next((known for known in ORDERS if known == order), None)
        if kind is None:
            raise ValueError(f"--order {order}: must be one of {', '.join(ORDERS)}")
        if nodes is not None:
            if not 0 < images < math.inf:
                raise ValueError(f"--images {images}: must be a number of images a second, more than 0")
            machine = Machine(
                0, simulate_cluster.parse_rate("--bucket", bucket), latency, _bytes("--block-size", block_size),
                prefetch=prefetch, listing=listing,
            )  # fmt: skip
            cluster_question = simulate_cluster.ClusterQuestion(
                nodes, gpus_per_node, readers or 4, images * _bytes("--image-size", image_size),
                Shards(shards, _bytes("--size", size), "train"), kind, epochs, seed, announced, machine,
                simulate_cluster.parse_rate("--link", link), simulate_cluster.parse_rate("--connection", connection),
            )  # fmt: skip
            simulate_cluster.answer(cluster_question, caches, as_json, plot)
            return
        readers = readers or 8
        if log is not None:
            requests = requests_of(log.read_text(encoding="utf-8", errors="replace").splitlines())
            question = _logged(requests, bandwidth, latency, _bytes("--block-size", block_size), listing, prefetch)
        else:
            reader_bytes_s = float(_bytes("--compute", compute))
            made_up = _made_up(
                Shards(shards, _bytes("--size", size), "train"), readers, kind, reader_bytes_s, epochs, seed,
                is_announced=announced, count=jobs, lag_shards=lag, switches=switch,
            )  # fmt: skip
            demand = sum(readers * job.reader_bytes_s for job in made_up[:jobs])
            data = sum({job.shards: job.shards.count * job.shards.size for job in made_up[:jobs]}.values())
            block_bytes = _bytes("--block-size", block_size)
            rate = _rate(bandwidth, demand)
            question = Question(made_up, [], data, rate, latency, block_bytes, listing, prefetch)
    except (ValueError, OSError) as error:
        raise refused(error) from error
    widest = ("100%", max(policies, key=len), max(["log", *(job.name for job in question.jobs)], key=len))
    found_rows = (row for part in caches for name in policies for row in rows_of(question, part, name))
    rows = simulate_cluster.printed(found_rows, None if as_json else (_HEADINGS, widest, _words))
    if plot is not None:
        _plot(rows, plot)


# Options that say nothing about a cluster, and those that say something about a cluster alone.
_OF_ONE = ("log", "bandwidth", "compute", "jobs", "lag", "switch", "policy")
_OF_NODES = ("gpus_per_node", "images", "image_size", "link", "bucket", "connection")


def _check_use(context: typer.Context, *, is_cluster: bool) -> None:
    """Raises ValueError: an option that was given would have no effect."""
    for name in _OF_ONE if is_cluster else _OF_NODES:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = "a log" if name == "log" else f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} does not go with --nodes" if is_cluster else f"{option} needs --nodes")


def _made_up(
    shards: Shards, readers: int, order: OrderKind, reader_bytes_s: float, epochs: int, seed: int, *,
    is_announced: bool, count: int, lag_shards: int, switches: bool,
) -> list[JobSpec]:  # fmt: skip
    """`count` jobs over one dataset, each `lag_shards` behind the one before; with `switches`, then over another one.
    `is_announced`: the order is announced as each epoch begins."""
    shard_s = shards.size / reader_bytes_s / readers
    return [
        JobSpec(
            f"{name} {number + 1}" if count > 1 else name,
            replace(shards, name=name),
            order_of(order, list(range(shards.count)), readers, seed + turn),
            epochs,
            reader_bytes_s,
            f"10.0.0.{number + 1}",
            # A tenth more than reading the first dataset takes, so that its jobs have ended.
            number * lag_shards * shard_s + turn * 1.1 * epochs * shards.count * shard_s,
            is_announced,
        )
        for turn, name in enumerate((shards.name, "other") if switches else (shards.name,))
        for number in range(count)
    ]


def _logged(
    requests: list[Request], bandwidth: str, latency_s: float, block_bytes: int, listing: bool, prefetch: bool
) -> Question:
    if not requests:
        raise ValueError("no answered GET in this log; is it JSON (--log-format json)?")
    sizes = {(request.bucket, request.key): request.size for request in requests}
    lasted_s = max(requests[-1].at, 1.0)
    demand = sum(request.stop - request.start for request in requests) / lasted_s
    rate, data_bytes = _rate(bandwidth, demand), sum(sizes.values())
    return Question([], requests, data_bytes, rate, latency_s, block_bytes, listing, prefetch)


def _part(text: str) -> float:
    try:
        part = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        part = 0.0
    if not 0 < part < math.inf:
        raise ValueError(f"--cache {text}: must be a part of the data, such as 25%")
    return part


def _policies(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in (*POLICIES, "opt"):
            raise ValueError(f"--policy {name}: must be one of {', '.join((*POLICIES, 'opt'))}")
    return names


def _bytes(option: str, text: str) -> int:
    found = parse_bytes(text)
    if found <= 0:
        raise ValueError(f"{option} {text}: must be more than 0 bytes")
    return found


def _rate(text: str, demand_bytes_s: float) -> float:
    if not text.endswith("x"):
        return float(_bytes("--bandwidth", text))
    try:
        times = float(text.removesuffix("x"))
    except ValueError:
        times = 0.0
    if not 0 < times < math.inf:
        raise ValueError(f"--bandwidth {text}: must be bytes a second, or times what the jobs read, such as 1.3x")
    return times * demand_bytes_s


def rows_of(question: Question, cache: float, policy: str) -> list[PolicyRow]:
    machine = question.machine(cache)
    run = Simulation(machine, "none" if policy == "opt" else policy, question.jobs, question.requests)
    epochs = run.run()
    if policy == "opt":
        return _optimal(run, epochs, machine, cache)
    return [
        PolicyRow(cache, policy, epoch.job, epoch.number, epoch.hit_ratio, epoch.traffic, epoch.stall, epoch.waste)
        for epoch in epochs
    ]


def _optimal(run: Simulation, epochs: list[EpochResult], machine: Machine, cache: float) -> list[PolicyRow]:
    """Belady's optimum over the order of reads of a run. It counts objects, so the cache holds objects of mean size."""
    mean_bytes = sum(of.version.size for of in run.objects.values()) / len(run.objects)
    hits = optimal_hits([ref for ref, _ in run.opened], int(machine.capacity_bytes / mean_bytes))
    rows = []
    for epoch in epochs:
        own = [hit for hit, (_, row) in zip(hits, run.opened, strict=True) if row is epoch]
        ratio = sum(own) / max(1, len(own))
        missed_bytes = len(own) * (1 - ratio) * mean_bytes
        rows.append(
            PolicyRow(cache, "opt", epoch.job, epoch.number, ratio, missed_bytes / epoch.dataset_bytes, None, None)
        )
    return rows


def _words(row: PolicyRow) -> tuple[str, ...]:
    numbers = ("" if value is None else f"{value:.3f}" for value in (row.hits, row.traffic, row.stall, row.waste))
    return f"{row.cache:.0%}", row.policy, row.job, str(row.epoch), *numbers


def _plot(rows: list[PolicyRow], file: Path) -> None:
    figure = simulate_cluster.new_figure(7, 4.5)
    axes = figure.subplots()
    last = max(row.epoch for row in rows)
    for name in dict.fromkeys(row.policy for row in rows):
        points: dict[float, list[float]] = {}
        for row in rows:
            if row.policy == name and row.epoch == last:
                points.setdefault(row.cache, []).append(row.hits)
        axes.plot(
            [100 * part for part in points], [sum(hits) / len(hits) for hits in points.values()], "o-", label=name
        )
    axes.set(xlabel="cache, % of the data", ylabel=f"hit ratio in epoch {last}", ylim=(-0.02, 1.02))
    axes.legend()
    figure.savefig(file)
