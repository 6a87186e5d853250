"""The simulator's own parts: Belady's algorithm, the miss-ratio curve, logs, and the command."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from outrider.cli import with_commands
from outrider.core.ahead.dataset.registry import Outlook
from outrider.core.insight.miss_ratio import MissRatioCurve
from outrider.core.model import ObjectRef
from outrider.simulator.logs import requests_of
from outrider.simulator.optimal import optimal_hits
from outrider.simulator.run import Machine, Simulation
from outrider.simulator.scenarios import JobSpec, Shards, order_of

SMALL = ["--shards", "60", "--size", "8MiB", "--block-size", "2MiB", "--readers", "4"]

SIMULATE = with_commands(["simulate"])


def most_hits(reads: tuple[int, ...], capacity: int, cached: frozenset[int] = frozenset()) -> int:
    """The model tries all choices. An object that was read need not be admitted."""
    if not reads:
        return 0
    first, rest = reads[0], reads[1:]
    if first in cached:
        return 1 + most_hits(rest, capacity, cached)
    choices = [cached | {first}] if len(cached) < capacity else [cached, *(cached - {old} | {first} for old in cached)]
    return max(most_hits(rest, capacity, choice) for choice in choices)


@given(st.lists(st.integers(0, 4), max_size=8), st.integers(1, 3))
def test_no_choice_of_victims_hits_more_often_than_belady(reads: list[int], capacity: int) -> None:
    assert sum(optimal_hits(reads, capacity)) == most_hits(tuple(reads), capacity)


def test_the_miss_ratio_curve_is_that_of_lru_at_other_sizes() -> None:
    chance, count = Random(1), 20_000
    refs = [ObjectRef("b", str(i)) for i in range(count)]
    miss_ratio = MissRatioCurve(count // 4, sampled_max=2000)
    for ref in chance.choices(refs, k=6 * count):
        miss_ratio.opened(ref, 1)
    curve = miss_ratio.lru()
    assert curve is not None
    # Uniform sampling with replacement: a cache of a part of the objects hits for that part of the reads.
    for factor, truth in ((0.5, 0.125), (1.0, 0.25), (2.0, 0.5), (4.0, 1.0)):
        assert curve[factor] == pytest.approx(truth, abs=0.04)


def test_the_miss_ratio_curve_samples_a_smaller_part_of_more_names() -> None:
    refs = [ObjectRef("b", str(i)) for i in range(20_000)]
    miss_ratio = MissRatioCurve(10**9, sampled_max=500)
    tracemalloc.start()
    try:
        for ref in refs:
            miss_ratio.opened(ref, 1)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Four caches of 500 numbers. Caches of all names would take some ten million bytes.
    assert taken < 1e6, taken


def test_the_estimate_for_epochs_is_better_than_lru() -> None:
    miss_ratio = MissRatioCurve(25)
    for _ in range(3):
        for i in range(100):
            miss_ratio.opened(ObjectRef("b", str(i)), 1)
    assert miss_ratio.lru() == {0.5: 0.0, 1.0: 0.0, 2.0: 0.0, 4.0: pytest.approx(0.667, abs=0.01)}
    curve = miss_ratio.epoch(Outlook(set_reads=100, set_bytes=100))
    assert curve is not None
    assert curve[1.0] == pytest.approx(0.597, abs=0.01)
    assert miss_ratio.epoch(Outlook(ordered_reads=100, ordered_bytes=100)) == dict.fromkeys(curve, 1.0)
    assert miss_ratio.epoch(Outlook(part_reads=100, set_bytes=100)) == {0.5: 0.125, 1.0: 0.25, 2.0: 0.5, 4.0: 1.0}


def line(**said: object) -> str:
    return json.dumps({"time": "2026-01-01T00:00:10.000Z", "op": "get", "status": 200, "seconds": 1.0, "bytes": 100,
                       "bucket": "b", "key": "k", "client": "-", **said})  # fmt: skip


def test_only_answered_reads_are_taken_from_a_log() -> None:
    lines = [
        line(),
        line(time="2026-01-01T00:00:12.000Z", key="r", status=206, range="bytes=50-149"),
        line(status=404), line(op="head"), line(range="bytes=-5", status=206), "plain text", '{"cut',
    ]  # fmt: skip
    found = requests_of(lines)
    assert [(read.at, read.key, read.start, read.stop, read.size) for read in found] == [
        (0.0, "k", 0, 100, 100),
        (2.0, "r", 50, 150, 150),
    ]


def simulate(*words: str) -> list[dict[str, object]]:
    result = CliRunner().invoke(SIMULATE, ["simulate", *words, "--json"])
    assert result.exit_code == 0, result.output
    rows: list[dict[str, object]] = json.loads(result.output)
    return rows


def test_a_sweep_has_a_row_for_each_size_policy_and_epoch() -> None:
    rows = simulate(*SMALL, "--cache", "25%,50%", "--policy", "epoch,opt", "--epochs", "2")
    assert [(row["cache"], row["policy"], row["epoch"]) for row in rows] == [
        (share, policy, epoch) for share in (0.25, 0.5) for policy in ("epoch", "opt") for epoch in (1, 2)
    ]
    assert rows[3]["hits"] == pytest.approx(0.25, abs=0.02)


def test_a_simulation_without_prefetch_only_evicts() -> None:
    rows = simulate(*SMALL, "--no-prefetch", "--policy", "epoch,opt", "--epochs", "2")
    second = {row["policy"]: row for row in rows if row["epoch"] == 2}
    assert second["opt"]["hits"] - 0.1 <= second["epoch"]["hits"] <= second["opt"]["hits"]  # type: ignore[operator]
    assert second["epoch"]["waste"] == 0.0


def test_an_announced_order_is_known_from_the_first_read_on_also_by_the_options_former_name() -> None:
    words = [*SMALL, "--order", "fresh", "--bandwidth", "2x", "--policy", "epoch", "--epochs", "1"]
    (unknown,), (announced,) = simulate(*words), simulate(*words, "--announced")
    assert announced["hits"] > unknown["hits"]  # type: ignore[operator]
    assert simulate(*words, "--told") == [announced]


def test_no_search_goes_on_after_the_job() -> None:
    """Two workers share an order, so that a million seeds are tried: that takes 25 s of virtual time."""
    job = JobSpec("train", Shards(100, 8 * 2**20), order_of("repeated", list(range(100)), 2, 1), 1, 100 * 2**20)
    run = Simulation(Machine(200 * 2**20, 260 * 2**20), "epoch", [job])
    (epoch,) = run.run()
    assert run.time.now < epoch.took_s + 1.0


def test_a_log_is_simulated(tmp_path: Path) -> None:
    lines = [line(time=f"2026-01-01T00:{n // 60:02d}:{n % 60:02d}.000Z", key=f"x-{n % 20:03d}", bytes=10**6)
             for n in range(100)]  # fmt: skip
    (tmp_path / "log").write_text("\n".join(lines))
    rows = simulate(str(tmp_path / "log"), "--cache", "50%", "--policy", "epoch,lru", "--bandwidth", "10MiB")
    last = {row["policy"]: row["hits"] for row in rows}
    assert last["lru"] == 0.0
    assert last["epoch"] == 1.0


def test_the_table_is_readable_and_the_same_for_the_same_seed() -> None:
    runs = [CliRunner().invoke(SIMULATE, ["simulate", *SMALL, "--order", "fresh"]).output for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0].split()[:4] == ["cache", "policy", "job", "epoch"]


@pytest.mark.parametrize(("words", "said"), [
    (["--order", "odd"], "--order odd"), (["--cache", "much"], "--cache much"), (["--cache", "0%"], "--cache 0%"),
    (["--policy", "magic"], "--policy magic"), (["--size", "big"], "big"), (["/nowhere/log"], "/nowhere/log"),
    (["--cache", "nan"], "--cache nan"), (["--cache", "inf"], "--cache inf"), (["--size", "0"], "--size 0"),
    (["--compute", "0"], "--compute 0"), (["--block-size", "0"], "--block-size 0"),
    (["--bandwidth", "0"], "--bandwidth 0"), (["--bandwidth", "0x"], "--bandwidth 0x"),
    (["--bandwidth=-1x"], "--bandwidth -1x"), (["--bandwidth", "nanx"], "--bandwidth nanx"),
    (["--bandwidth", "fastx"], "--bandwidth fastx"), (["--latency", "inf"], "--latency inf"),
])  # fmt: skip
def test_invalid_options_are_refused_by_name(words: list[str], said: str) -> None:
    result = CliRunner().invoke(SIMULATE, ["simulate", *words])
    assert result.exit_code == 2
    assert said in result.output
