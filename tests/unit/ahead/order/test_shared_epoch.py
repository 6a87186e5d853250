"""Shared epochs: several clients read each epoch together, as the nodes behind one proxy or the pods of a node."""

from __future__ import annotations

from array import array
from itertools import zip_longest
from random import Random

import pytest

from outrider.core.ahead.dataset import job_table as job_table_module
from outrider.core.ahead.order.frontier import FetchCursor
from outrider.core.ahead.prefetch_candidates import Candidates, Want
from outrider.core.model import ObjectRef
from tests.support.held_memory import held_bytes
from tests.support.planner import PlannedStore, drive, ratio, shuffled
from tests.support.trials import SCALE

JOBS_MAX = 64
EPOCHS = 4 if SCALE > 1 else 3


def listed(count: int) -> PlannedStore:
    store = PlannedStore(count, 1, count // 4)
    store.planner.discovery.listed("bucket", [(ref.key, store.size) for ref in store.refs])
    return store


def by_turns(store: PlannedStore, parts: list[list[ObjectRef]]) -> list[bool]:
    hits = []
    for turn in zip_longest(*parts):
        for client, ref in enumerate(turn):
            hits += drive(store, [ref], f"node {client}") if ref is not None else []
    return hits


@pytest.mark.parametrize("nodes", [2, 8, 40])
def test_the_rest_of_an_epoch_that_several_clients_share_is_prefetched(nodes: int) -> None:
    """DistributedSampler gives each node another part in each epoch. Without sharing, only cached objects would be
    hits. Among many there is always one whose reads look like those of another epoch, or of another node."""
    store = listed(400 if nodes < 10 else 480)
    for epoch in range(2):
        order = shuffled(store, epoch)
        ratios = ratio(by_turns(store, [order[node::nodes] for node in range(nodes)]))
        assert ratios > (0.45 if epoch else 0.35), f"epoch {epoch}"


def test_for_some_nodes_of_a_run_only_the_objects_that_they_ask_for_are_fetched() -> None:
    """Other nodes read the rest through other proxies."""
    store = listed(400)
    for epoch in range(5):
        order = shuffled(store, epoch)
        fetched_bytes = store.planner.fetched_bytes
        hits = by_turns(store, [order[node::4] for node in range(2)])
    assert ratio(hits) > 0.2
    assert store.planner.fetched_bytes == fetched_bytes


def test_a_client_that_comes_later_and_an_unrelated_one_do_not_end_a_shared_epoch() -> None:
    store = listed(400)
    for epoch in range(3):
        order = shuffled(store, epoch)
        parts = [order[node::4] for node in range(4)]
        hits = drive(store, parts[0][:10], "node 0")
        hits += by_turns(store, [parts[0][10:60], *(part[:50] for part in parts[1:])])
        drive(store, Random(epoch).sample(store.refs, 10), "stranger")
        hits += by_turns(store, [parts[0][60:], *(part[50:] for part in parts[1:])])
    assert ratio(hits) > 0.5


@pytest.mark.parametrize("apart", [0, 100])
def test_two_clients_that_read_independently_are_predicted_each_by_itself(apart: int) -> None:
    store = listed(400)
    alone = [ref for epoch in range(EPOCHS) for ref in shuffled(store, epoch)]
    other = [ref for epoch in range(EPOCHS) for ref in shuffled(store, 10 + epoch)]
    drive(store, alone[:apart], "node 0")
    hits = by_turns(store, [alone[apart:], other])
    assert ratio(hits[800:]) > 0.4
    [dataset] = store.planner.registry.datasets()
    assert len(dataset.epochs()) >= 2


@pytest.mark.parametrize("kind", ["repeated", "announced"])
def test_a_known_order_of_one_client_is_preferred_to_the_shared_epoch(kind: str) -> None:
    store = listed(400)
    for epoch in range(3):
        order = shuffled(store, epoch if kind == "announced" else 1)
        parts = [order[node::4] for node in range(4)]
        for node, part in enumerate(parts) if kind == "announced" else ():
            store.planner.announced(f"node {node}", part, store.now, start=0, total=len(part))
        hits = by_turns(store, parts)
    assert ratio(hits) > 0.95


def test_clients_beyond_the_bound_take_no_tables_and_share_the_epoch_as_the_others_do() -> None:
    store = listed(480)
    [dataset] = store.planner.registry.datasets()
    for epoch in range(2):
        order = shuffled(store, epoch)
        hits = by_turns(store, [order[node::160] for node in range(160)])
        assert ratio(hits) > 0.5, f"epoch {epoch}"
        assert len(dataset.jobs) == JOBS_MAX


def test_fewer_clients_have_tables_where_names_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_table_module, "_JOBS_NAMES_MAX", 8 * 400)
    store = listed(400)
    [dataset] = store.planner.registry.datasets()
    for number, ref in enumerate(store.refs):
        drive(store, [ref], f"node {number % 20}")
    assert len(dataset.jobs) == 8


@pytest.mark.parametrize("announced", [False, True])
def test_a_new_client_beyond_the_bound_takes_the_place_of_the_one_that_was_silent_for_longest(announced: bool) -> None:
    """It does so at once if it announces its order, which is worth more than guesses about others."""
    store = listed(400)
    [dataset] = store.planner.registry.datasets()
    for number in range(JOBS_MAX):
        drive(store, [store.refs[number]], f"node {number}")
    drive(store, store.refs[100:110], "late")
    assert "late" not in dataset.jobs
    if announced:
        store.planner.announced("late", store.refs[110:200], store.now, start=0, total=90)
    else:
        store.now += 61.0
    hits = drive(store, store.refs[110:200], "late")
    assert "late" in dataset.jobs
    assert "node 0" not in dataset.jobs
    assert len(dataset.jobs) == JOBS_MAX
    if announced:
        assert ratio(hits[10:]) > 0.9


def test_each_call_of_wants_asks_some_of_many_jobs_and_all_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[FetchCursor]] = []
    wants, current = Candidates.wants, FetchCursor.current

    def counted(self: FetchCursor, agenda: array[int]) -> int | None:
        asked[-1].add(self)
        return current(self, agenda)

    def counted_call(self: Candidates, now: float, free_bytes: int, blocks: int) -> list[Want]:
        asked.append(set())
        return wants(self, now, free_bytes, blocks)

    monkeypatch.setattr(FetchCursor, "current", counted)
    monkeypatch.setattr(Candidates, "wants", counted_call)
    store, jobs = listed(160), 17
    orders = [shuffled(store, job) for job in range(jobs)]
    for job, order in enumerate(orders):
        store.planner.announced(f"node {job}", order, store.now, start=0, total=len(order))
    hits = by_turns(store, [order[:48] for order in orders])
    assert max(map(len, asked)) == 16
    assert min(ratio(hits[job::jobs]) for job in range(jobs)) > 0.9


def test_clients_that_come_and_go_take_no_memory() -> None:
    held = []
    for pods in (100, 800):
        store = listed(400)
        for number, ref in enumerate([ref for epoch in range(2) for ref in shuffled(store, epoch)]):
            drive(store, [ref], f"pod {number % pods}")
        [dataset] = store.planner.registry.datasets()
        assert dataset.job_table.shared_epoch is not None
        held.append(held_bytes(dataset.job_table.shared_epoch))
        assert len(dataset.jobs) == JOBS_MAX
    assert held[1] < 1.1 * held[0]
