"""Nodes and zones that a pod prefers, and the shares of its data that nodes hold."""

from __future__ import annotations

import pytest

from outrider.core.cluster.object_samples import SAMPLED_MAX, KnownObject, ObjectSample, drawn, number_of
from outrider.core.operator.affinity import Holding, preferred_terms
from outrider.core.operator.holdings import Held, HeldDataset, NodeDatasets


def weights(holdings: list[Holding], weight_max: int | None = None) -> dict[str, int]:
    terms = preferred_terms(holdings) if weight_max is None else preferred_terms(holdings, weight_max)
    return {part["values"][0]: term["weight"] for term in terms for [part] in term["preference"].values()}


@pytest.mark.parametrize(
    ("share", "weight"), [(1.0, 100), (0.95, 100), (0.94, 75), (0.75, 75), (0.5, 50), (0.25, 25), (0.24, 0), (0.0, 0)]
)
def test_the_more_a_node_holds_the_more_it_is_preferred(share: float, weight: int) -> None:
    assert weights([Holding("a", None, share)]) == ({"a": weight} if weight else {})


def test_nodes_that_hold_little_each_are_preferred_by_their_zone() -> None:
    nodes = [Holding(f"n{number}", "one", 0.125) for number in range(6)] + [Holding("m", "two", 0.25)]
    assert weights([*nodes, Holding(None, "one", 0.75), Holding(None, "two", 0.25)]) == {"one": 50, "m": 25}


def test_the_terms_are_bounded() -> None:
    nodes = [(name, f"z{number}") for number in range(1000) for name in (f"n{number}", None)]
    terms = preferred_terms([Holding(node, zone, 1.0) for node, zone in nodes])
    assert len(terms) == 20


def test_less_weight_than_the_users_own() -> None:
    nodes = [Holding("a", "one", 1.0), Holding(None, "one", 1.0)]
    assert weights(nodes, 49) == {"a": 32, "one": 16}
    assert weights(nodes, 1) == {}, "two terms of a node would weigh as much as the user's"
    assert weights(nodes, 0) == {}


def dataset(name: str, held: dict[str, int], size: int = 10) -> HeldDataset:
    """`held`: the bytes that are held of each object, by key."""
    objects = [KnownObject(number_of("b", key), size, count) for key, count in held.items()]
    return HeldDataset("b", name, drawn(objects, SAMPLED_MAX))


TRAIN_A = dataset("train/", {"1": 10, "2": 5, "3": 0})
TRAIN_B = dataset("train/", {"3": 10, "2": 5, "4": 0})


@pytest.mark.parametrize(
    ("url", "shares"),
    [
        ("s3://b/train/", [15 / 40, 15 / 40, 30 / 40]),
        ("s3://b/train/images/", [15 / 40, 15 / 40, 30 / 40]),
        ("s3://b/train/shard-{00..99}.tar", [15 / 40, 15 / 40, 30 / 40]),
        ("s3://b/", [25 / 50, 15 / 50, 40 / 50]),
        ("s3://b/t", [15 / 40, 15 / 40, 30 / 40]),
        ("s3://b/train", [15 / 40, 15 / 40, 30 / 40]),
        ("s3://b/other/", []),
        ("s3://c/train/", []),
    ],
)
def test_shares_are_of_all_objects_that_any_node_knows(url: str, shares: list[float]) -> None:
    nodes = [
        NodeDatasets("a", "z", [TRAIN_A, dataset("val/", {"5": 10})]),
        NodeDatasets("b", "z", [TRAIN_B, HeldDataset("b", "new/", ObjectSample())]),
    ]
    found = [holding.share for holding in Held(nodes).of([url])]
    assert found == pytest.approx(shares)


def test_owners_of_equal_parts_hold_a_part_each_and_copies_count_once() -> None:
    """Each of them knows the objects alone that it holds."""
    keys = [f"{number:02}" for number in range(40)]
    parts = [dataset("train/", dict.fromkeys(keys[owner::4], 10)) for owner in range(4)]
    nodes = [NodeDatasets(f"n{owner}", "one", [part]) for owner, part in enumerate(parts)]
    assert [each.share for each in Held(nodes).of(["s3://b/train/"])] == [0.25, 0.25, 0.25, 0.25, 1.0]
    assert weights(Held(nodes).of(["s3://b/train/"])) == {"n0": 25, "n1": 25, "n2": 25, "n3": 25, "one": 50}
    copies = [NodeDatasets("m", "two", nodes[0].datasets), NodeDatasets("m2", "two", nodes[0].datasets)]
    zones = {each.zone: each.share for each in Held([*nodes, *copies]).of(["s3://b/train/"]) if each.node is None}
    assert zones == {"one": 1.0, "two": 0.25}


def test_a_dataset_that_is_named_by_a_template_is_found_by_its_prefix_and_by_a_shard() -> None:
    nodes = [NodeDatasets("a", "z", [dataset("train/shard-{000000..000099}.tar", {"0": 10})])]
    for url in ("s3://b/train/", "s3://b/train/shard-000007.tar", "s3://b/train/shard-{000000..000049}.tar"):
        assert Held(nodes).of([url]) == [Holding("a", "z", 1.0), Holding(None, "z", 1.0)]
