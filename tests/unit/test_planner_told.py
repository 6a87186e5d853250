"""Orders that were told: in pieces, in part, anew, or with an object twice."""

from __future__ import annotations

from random import Random

from outrider.core.model import ObjectRef
from tests.unit.test_ahead_properties import BLOCK, Store


def drive(store: Store, order: list[ObjectRef], client: str = "a") -> list[bool]:
    """Reads one after the other, while two blocks come with each. Which of them were hits."""
    hits = []
    for ref in order:
        store.now += 0.01
        hits.append(store.key(ref, 0) in store.present)
        store.ask(ref, client)
        store.read_on(ref)
        for _ in range(2):
            think(store)
            land(store, 1)
    return hits


def think(store: Store) -> None:
    free_bytes = (store.capacity_blocks - len(store.present)) * BLOCK
    store.take(store.planner.wants(store.now, free_bytes, 16))


def land(store: Store, count: int) -> None:
    for block in sorted(store.coming)[:count]:
        store.land(block)


def shuffled(store: Store, seed: int) -> list[ObjectRef]:
    return Random(seed).sample(store.refs, len(store.refs))


def tell(store: Store, order: list[ObjectRef], total: int | None) -> None:
    """As the server passes it on."""
    for at in range(0, len(order), 100):
        store.planner.told("a", order[at : at + 100], store.now, start=at, total=total)


def ratio(hits: list[bool]) -> float:
    return sum(hits) / len(hits)


def agenda(store: Store) -> list[str]:
    [dataset] = store.planner.library.datasets()
    return [dataset.names.keys[key] for key in dataset.passes()[-1].agenda]


def test_the_pieces_of_a_plan_without_a_total_are_read_one_after_the_other() -> None:
    store = Store(300, 1, 30)
    order = shuffled(store, 1)
    tell(store, order, None)
    assert agenda(store) == [ref.key for ref in order]


def test_what_a_run_taken_up_amid_a_told_order_has_left_behind_does_not_stop_it() -> None:
    store = Store(1000, 1, 250)
    store.planner.listed("bucket", [(ref.key, store.size) for ref in store.refs], 0.0)
    order = shuffled(store, 1)
    store.planner.told("a", order, 0.0)
    for _ in range(40):
        think(store)
        land(store, 16)
    assert ratio(drive(store, order[500:])[60:]) > 0.8
