"""The benchmarks' harness, never their figures: targets start, serve and stop, and each goal has its row.

Targets also empty their cache on request. Blocks that the bench writes by itself are byte for byte those of the
store.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import line, procs, report, upkeep
from tests.bench.goals import NAMES, goals
from tests.bench.loads import LOADS, Load, measured, warm_up
from tests.bench.results import Results, Sample
from tests.bench.targets import (
    ALL,
    DIRECT,
    OUTRIDER,
    RCLONE,
    SIGV4,
    STATIC,
    NginxStatic,
    Outrider,
    Target,
    before,
    beside_before,
)
from tests.bench.world import NAME, Plan, World, make_bucket
from tests.support.bucket import Bucket
from tests.support.client_access import HAS_TORCH
from tests.support.proxy import Proxy
from tests.support.simulator import REPOSITORY, SimulatorProcess
from tests.support.trials import SCALE

MIB = 1024 * 1024
TINY = Plan(
    big_bytes=9 * MIB, stream_bytes=18 * MIB, shards=2, shard_bytes=17 * MIB, smalls=3, cold_smalls=3, firsts=1,
    first_bytes=70_000, blocks=250,
)  # fmt: skip
RUNNABLE = [kind for kind in ALL if kind.lacks() is None]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with make_bucket() as bucket, SimulatorProcess(bucket.address) as simulator:
        bucket.make_bucket(NAME)
        made = World(TINY, tmp_path_factory.mktemp("bench"), bucket, simulator)
        made.upload(bucket.endpoint)
        yield made


def load_named(name: str) -> Load:
    return next(load for load in LOADS if load.name == name)


@pytest.mark.parametrize("kind", RUNNABLE, ids=lambda kind: kind.slug)
def test_a_target_serves_the_data_empties_its_cache_and_leaves_no_process(world: World, kind: type[Target]) -> None:
    target = kind(world)
    try:
        target.start()
        target.populate()
        for key in (world.big, world.smalls[1]):
            with urllib.request.urlopen(target.url(key), timeout=60) as answer:
                assert answer.read() == world.body(key)
        if target.caches and kind is not NginxStatic:
            world.settle()
            world.simulator.reset()
            target.clear()
            with urllib.request.urlopen(target.url(world.big), timeout=60) as answer:
                assert answer.read() == world.body(world.big)
            assert world.simulator.counts().body_bytes >= len(world.body(world.big)), "not from the bucket"
        session = target.session
    finally:
        target.stop()
    assert session is None or procs.session_pids(session) == []


def test_a_cold_shard_costs_a_get_a_block_and_a_warm_one_nothing(world: World, tmp_path: Path) -> None:
    own = World(TINY, tmp_path, world.bucket, world.simulator)
    target = Outrider(own)
    target.start()
    try:
        cold = measured(load_named("epoch-4-boto3"), own, target, 0)
        assert cold.bucket_bytes == 2 * 17 * MIB
        assert cold.bucket_gets is not None
        assert cold.bucket_gets <= 2 * 3, "three blocks of 8 MiB a shard"
        warm_up(load_named("sink-1"), own, target)
        for name, reads in (("stream-8", 8), ("sink-1", 2)):
            warm = measured(load_named(name), own, target, 0)
            assert (warm.bucket_gets, warm.bucket_bytes, warm.bytes) == (0, 0, reads * 9 * MIB)
            assert warm.cpu_s is not None
            assert warm.machine_cpu_s is not None
            assert warm.machine_cpu_s > warm.cpu_s, "its clients work too"
        assert cold.cpu_s is not None
        assert cold.machine_cpu_s is None
        assert cold.rss_bytes is not None
        assert cold.rss_bytes > 10 * MIB
    finally:
        target.stop()


@pytest.mark.skipif(NginxStatic.lacks() is not None, reason="nginx is not installed")
@pytest.mark.parametrize("kind", ["https"])
def test_a_world_without_limits_serves_its_objects(world: World, kind: str) -> None:
    with line.world_of(kind, world.bucket, [], short=True) as own:
        target = line.LineOutrider(own)
        target.start()
        try:
            key = list(own.sizes)[-1]
            with urllib.request.urlopen(target.url(key), timeout=60) as answer:
                assert answer.read() == own.body(key)
        finally:
            target.stop()


@pytest.mark.parametrize("crashed", [False, True], ids=["snapshot", "scan"])
def test_blocks_that_the_bench_makes_are_those_of_the_store(bucket: Bucket, tmp_path: Path, crashed: bool) -> None:
    cache = tmp_path / "cache"
    upkeep.fill(cache, bucket.endpoint, TINY.blocks)
    if crashed:
        (cache / "index").unlink()
    with Proxy(bucket, cache_dir=str(cache), cache_size="2TiB") as proxy:
        store = proxy.outrider.store
        assert len(store) == TINY.blocks
        proxy.on_loop(lambda: store.verify(next(store.each())))
        assert (len(store), proxy.metric("outrider_bad_blocks_total")) == (TINY.blocks, 0)


def sample(load: str, target: str, **figures: float) -> Sample:
    fields = {"seconds": 1.0, "bytes": 10**9, "requests": 1000, "p50_s": 0.05, "p99_s": 0.1, "cpu_s": 0.5,
            "machine_cpu_s": 0.8, **figures}  # fmt: skip
    return Sample(load=load, target=target, round=0, rss_bytes=10**8, bucket_bytes=0, bucket_gets=0, **fields)  # type: ignore[arg-type]


def test_each_goal_has_its_row_measured_or_not() -> None:
    rows = goals(Results(), NAMES)
    assert [row.met for row in rows] == [None] * len(rows)
    assert len({(row.what, row.goal) for row in rows}) == len(rows)
    named = "\n".join(f"{row.what} {row.goal}" for row in rows)
    for promise in (
        "streams: 1", "streams: 8", "CPU s/GB", "connections: 16", "connections: 64", f">= 3 x {RCLONE}", "sigv4",
        "small objects, warm", "small objects, first pass", "0.97 x the bucket's total", "readers: 1", "first byte",
        "out of order", "WebDataset pipeline", "memory, loaded", "memory, idle", "ready, empty", "ready, 100,000",
    ):  # fmt: skip
        assert promise in named
    assert {row.load for row in rows} == set(NAMES)
    asked = ["stream-8", "first-byte"]
    assert [row.load for row in goals(Results(), asked)] == ["stream-8"] * 3 + ["first-byte"], (
        "only the goals of these loads"
    )


def test_a_goal_is_met_or_not_by_the_median_of_its_rounds() -> None:
    results = Results([sample("range-16", STATIC), sample("range-16", SIGV4, requests=350)])
    results.samples += [sample("range-16", OUTRIDER, requests=count) for count in (599, 10, 600)]
    results.samples += [sample("first-byte", DIRECT), sample("first-byte", OUTRIDER, p50_s=0.0549)]
    results.figures |= {upkeep.IDLE_RSS: 61e6, upkeep.FULL_START: 0.6}
    rows = {(row.what, row.goal): (row.measured, row.met) for row in goals(results, NAMES)}
    assert rows["64 KiB ranges, connections: 16", f">= 0.6 x {STATIC}"] == ("0.60 x", False)
    assert rows["64 KiB ranges, connections: 16, sigv4", f">= 0.35 x {STATIC}"] == ("0.35 x", True)
    assert rows["cold first byte, p50", "<= direct + 5 ms"] == ("+4.9 ms", True)
    assert rows["memory, idle", "<= 60 MB"] == ("61 MB", False)
    assert rows["start to ready, 100,000 blocks", "<= 0.6 s"] == ("0.60 s", True)


def test_a_table_compares_with_the_limit_and_with_the_best_peer() -> None:
    load = load_named("range-16")
    results = Results([sample("range-16", name, requests=count) for name, count in ((OUTRIDER, 600), (RCLONE, 300))])
    results.add(sample("range-16", STATIC))
    grid = report.load_grid(load, results)
    assert [row[0] for row in grid.rows] == [OUTRIDER, RCLONE, STATIC], "those measured, in the load's order"
    assert grid.headings[-2:] == (f"x {STATIC}", f"x {RCLONE}")
    assert grid.rows[0][-2:] == ("0.60", "2.00")
    assert grid.markdown().splitlines()[4] == f"| {' | '.join(grid.rows[0])} |"


def test_a_row_is_compared_with_that_of_the_version_before(world: World) -> None:
    then = before(OUTRIDER)
    results = Results([sample("range-16", OUTRIDER, requests=300), sample("range-16", then, requests=400)])
    results.samples += [sample("first-byte", OUTRIDER, p50_s=0.02), sample("first-byte", then, p50_s=0.01)]
    grid = report.before_grid(results)
    assert [row[:2] for row in grid.rows] == [(f"range-16, {OUTRIDER}", "0.75"), (f"first-byte, {OUTRIDER}", "0.50")]
    assert [*beside_before([Outrider], None)] == [Outrider]
    python = Path("/another/bin/python")
    _, kind, other = beside_before([Outrider, NginxStatic], python)
    assert (kind.name, other) == (then, NginxStatic)
    target = kind(world)
    assert target.argv()[0] == python
    assert target.argv().count("serve") == 1
    assert "PYTHONPATH" not in target.env(), "it would be this version's code"


@pytest.mark.skipif(SCALE == 1, reason="takes minutes: for `make soak`")
@pytest.mark.skipif(not HAS_TORCH, reason="torch is pinned to a release without a wheel for this Python")
def test_the_goals_of_prefetch_are_measured_live(tmp_path: Path) -> None:
    """Only the shape: each job reads the samples that were written, and each goal has its row. The data is too small
    for figures."""
    rows = tmp_path / "rows.json"
    argv = [sys.executable, "-m", "tests.bench.ahead", "--short", "--json", str(rows)]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    goals = {(row["world"], row["figure"]): row["goal"] for row in json.loads(rows.read_text())}
    for world, figure, goal in (
        ("WebDataset default", "excess wait, epoch 1", "<= 0.35"),
        ("WebDataset announced", "excess wait, epochs 1 to 3", "<= 0.03"),
        ("WebDataset lru", "excess wait, epoch 2", ""),
        ("DELI AnnouncingSampler", "excess wait, epochs 1 to 2", "<= 0.02"),
        ("connector default", "bucket / data, epoch 1", "<= 1.03"),
        ("connector images from the local disk", "accelerator busy, epochs 1 to 3", ""),
        ("connector prefetch off", "bytes that hit, epochs 2 to 3", ">= 0.20"),
    ):
        assert goals[world, figure] == goal
    assert done.stdout.count("\n") == 1 + len(goals)
