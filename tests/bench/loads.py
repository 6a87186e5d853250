"""The benchmark's loads: objects, client and targets of each, and the first figure of its table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

from tests.bench import clients, procs
from tests.bench.clients import Took, Wanted
from tests.bench.results import Sample
from tests.bench.targets import (
    DIRECT,
    JUICEFS,
    NGINX_CACHE,
    OUTRIDER,
    RCLONE,
    S3FS,
    SIGV4,
    STATIC,
    Direct,
    Target,
)
from tests.bench.world import PROBE, RANGE_BYTES, World

Run = Callable[[World, Target], Took]

_OVER_HTTP = (OUTRIDER, DIRECT, RCLONE, NGINX_CACHE, JUICEFS, STATIC)
_COLD = (OUTRIDER, DIRECT, RCLONE, NGINX_CACHE, JUICEFS)
_RANGES = 4096
_SEED = 11


@dataclass(frozen=True, slots=True)
class Load:
    """One load. `limit` is the target to which the ratios refer; `figure` is compared.

    A cold load empties the target before each run, and the bucket is far away. A warm load reads the keys of `warmed`
    first, and before each run if it is `warmed_anew`: the kernel's pages of one target may go while others are read. A
    target that is `restarted` is started anew after that.
    `each_round` is the number of runs in a round; there are more where a run takes less than a second and differs from
    the next by a third.
    """

    name: str
    title: str
    figure: Literal["mb_s", "req_s", "p50_s"]
    targets: tuple[str, ...]
    limit: str
    run: Run
    warmed: Callable[[World], list[str]] | None = None
    each_round: int = 1
    warmed_anew: bool = False
    restarted: bool = False

    @property
    def cold(self) -> bool:
        return self.warmed is None


def measured(load: Load, world: World, target: Target, round_number: int) -> Sample:
    """One run of `load` against one target, with the resources that the server and the bucket spent on it.

    Raises:
        BenchError, RuntimeError: it could not be done; the message says why.
    """
    if load.cold:
        world.calm()
        target.clear()
    elif load.restarted:
        target.stop()
        target.start()
    if isinstance(target, Direct):
        target.far = load.cold
    if load.cold:
        clients.curl([target.url(PROBE)], world.sizes[PROBE], readers=1, authority=world.authority)
        world.far_away()
    world.simulator.reset()
    before_s = None if target.session is None else procs.cpu_s(target.session)
    machine_before_s = procs.machine_cpu_s()
    took = load.run(world, target)
    if load.cold:
        world.settle()
    cpu_s = None if before_s is None or target.session is None else procs.cpu_s(target.session) - before_s
    machine_cpu_s = None if load.cold else procs.machine_cpu_s() - machine_before_s
    counts = world.simulator.counts()
    return Sample(
        load=load.name, target=target.name, round=round_number, seconds=took.seconds, bytes=took.bytes,
        requests=took.requests, p50_s=took.p50_s, p99_s=took.p99_s, cpu_s=cpu_s,
        machine_cpu_s=machine_cpu_s,
        rss_bytes=None if target.session is None else procs.rss_bytes(target.session),
        bucket_bytes=counts.body_bytes, bucket_gets=counts.gets,
    )  # fmt: skip


def warm_up(load: Load, world: World, target: Target) -> None:
    """Read the load's keys once, from a bucket that is near."""
    assert load.warmed is not None
    world.calm()
    if isinstance(target, Direct):
        target.far = False
    by_size: dict[int, list[str]] = {}
    for key in load.warmed(world):
        by_size.setdefault(world.sizes[key], []).append(target.url(key))
    for size, urls in by_size.items():
        clients.curl(urls, size, readers=4)
    world.settle()


def _streams(count: int) -> Run:
    def run(world: World, target: Target) -> Took:
        return clients.curl([target.url(world.big)] * _reads(world, count), world.plan.big_bytes, readers=count)

    return run


def _sinks(count: int) -> Run:
    def run(world: World, target: Target) -> Took:
        return clients.sinks(world, target.url(world.big), world.plan.big_bytes, _reads(world, count), readers=count)

    return run


def _reads(world: World, readers: int) -> int:
    """The number of reads of the big object in all, a multiple of `readers`."""
    return max(readers, world.plan.stream_bytes // world.plan.big_bytes // readers * readers)


def _ranges(connections: int) -> Run:
    def run(world: World, target: Target) -> Took:
        chance, size = Random(_SEED), world.plan.big_bytes
        url = target.url(world.big)
        starts = [chance.randrange(size - RANGE_BYTES) for _ in range(_RANGES)]
        wanted = [Wanted(url, (start, start + RANGE_BYTES)) for start in starts]
        return clients.wrk(
            wanted, RANGE_BYTES, connections=connections, seconds=world.plan.wrk_s, directory=world.directory
        )

    return run


def _small_warm(world: World, target: Target) -> Took:
    wanted = [Wanted(target.url(key)) for key in world.smalls]
    Random(_SEED).shuffle(wanted)
    return clients.wrk(
        wanted, world.plan.small_bytes, connections=16, seconds=world.plan.wrk_s, directory=world.directory
    )


def _small_cold(world: World, target: Target) -> Took:
    keys = world.smalls[: world.plan.cold_smalls]
    return clients.one_by_one([target.url(key) for key in keys], world.plan.small_bytes, threads=8)


def _epoch_curl(readers: int) -> Run:
    def run(world: World, target: Target) -> Took:
        urls = [target.url(key) for key in _some_shards(world, readers)]
        return clients.curl(urls, world.plan.shard_bytes, readers)

    return run


def _epoch_boto(readers: int) -> Run:
    def run(world: World, target: Target) -> Took:
        assert target.endpoint is not None
        return clients.boto_readers(world, target.endpoint, _some_shards(world, readers), readers)

    return run


def _some_shards(world: World, readers: int) -> list[str]:
    # One reader alone gets 40 MB/s from the bucket: two shards measure the same as all, in a quarter of the time.
    return world.shards if readers > 1 else world.shards[:2]


def _first_byte(world: World, target: Target) -> Took:
    return clients.first_bytes([target.url(key) for key in world.firsts], world.plan.first_bytes)


def _transfer(world: World, target: Target) -> Took:
    assert target.endpoint is not None
    return clients.transfer(world, target.endpoint, world.shards)


def _big(world: World) -> list[str]:
    return [world.big]


LOADS = (
    Load("stream-1", "big warm object, 1 stream (curl)", "mb_s", (*_OVER_HTTP, S3FS), STATIC, _streams(1), _big, 3),
    Load("stream-8", "big warm object, 8 streams (curl)", "mb_s", (*_OVER_HTTP, S3FS), STATIC, _streams(8), _big, 3),
    Load("sink-1", "big warm object, 1 stream (nothing copied)", "mb_s", _OVER_HTTP, STATIC, _sinks(1), _big, 3),
    Load("sink-8", "big warm object, 8 streams (nothing copied)", "mb_s", _OVER_HTTP, STATIC, _sinks(8), _big, 3),
    Load("range-16", "64 KiB ranges, 16 connections (wrk)", "req_s", (*_OVER_HTTP, SIGV4), STATIC, _ranges(16), _big),
    Load("range-64", "64 KiB ranges, 64 connections (wrk)", "req_s", (*_OVER_HTTP, SIGV4), STATIC, _ranges(64), _big),
    Load(
        "small-warm", "whole small objects, warm, 16 connections (wrk)", "req_s", _OVER_HTTP, STATIC, _small_warm,
        lambda world: world.smalls,
    ),
    Load("small-cold", "whole small objects, first pass, 8 threads", "req_s", _COLD, DIRECT, _small_cold),
    Load("epoch-4-boto3", "cold epoch of shards, 4 readers (boto3)", "mb_s", _COLD, DIRECT, _epoch_boto(4)),
    Load("epoch-1-boto3", "cold epoch of shards, 1 reader (boto3)", "mb_s", _COLD, DIRECT, _epoch_boto(1)),
    Load("epoch-4-curl", "cold epoch of shards, 4 readers (curl)", "mb_s", (*_COLD, S3FS), DIRECT, _epoch_curl(4)),
    Load("epoch-1-curl", "cold epoch of shards, 1 reader (curl)", "mb_s", (*_COLD, S3FS), DIRECT, _epoch_curl(1)),
    Load("first-byte", "cold first byte of an unknown object", "p50_s", _COLD, DIRECT, _first_byte),
    Load("transfer", "cold epoch by parallel ranges out of order", "mb_s", _COLD, DIRECT, _transfer),
)  # fmt: skip
