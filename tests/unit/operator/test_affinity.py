"""Nodes and zones that a pod prefers, and the shares of its data that nodes hold."""

from __future__ import annotations

import pytest

from outrider.core.operator.affinity import Holding, preferred_terms
from outrider.core.operator.holdings import Held, NodeDatasets


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
    assert weights(nodes) == {"one": 50, "m": 25}


def test_the_terms_are_bounded() -> None:
    terms = preferred_terms([Holding(f"n{number}", f"z{number}", 1.0) for number in range(1000)])
    assert len(terms) == 20


def test_less_weight_than_the_users_own() -> None:
    nodes = [Holding("a", "one", 1.0)]
    assert weights(nodes, 49) == {"a": 32, "one": 16}
    assert weights(nodes, 1) == {}, "two terms of a node would weigh as much as the user's"
    assert weights(nodes, 0) == {}


def dataset(name: str, size: int | None = 100, cached: float = 1.0, verified: float = 1.0) -> dict[str, object]:
    known = {} if size is None else {"bytes": size, "cached": cached, "verified": verified}
    return {"bucket": "b", "name": name, **known}


@pytest.mark.parametrize(
    ("url", "shares"),
    [
        ("s3://b/train/", [0.6, 0.1]),
        ("s3://b/train/images/", [0.6, 0.1]),
        ("s3://b/train/shard-{00..99}.tar", [0.6, 0.1]),
        ("s3://b/", [0.5, 0.25]),
        ("s3://b/t", [0.6, 0.1]),
        ("s3://b/train", [0.6, 0.1]),
        ("s3://b/other/", []),
        ("s3://c/train/", []),
    ],
)
def test_shares_are_of_all_that_any_node_knows(url: str, shares: list[float]) -> None:
    nodes = [
        NodeDatasets("a", None, [dataset("train/", 200, 0.75, 0.8), dataset("val/", 40, 0.0)]),
        NodeDatasets("b", None, [dataset("train/", 100, 0.2), dataset("val/", 40), dataset("new/", None)]),
    ]
    found = [holding.share for holding in Held(nodes).of([url])]
    assert found == pytest.approx(shares)


def test_a_dataset_that_is_named_by_a_template_is_found_by_its_prefix_and_by_a_shard() -> None:
    nodes = [NodeDatasets("a", "z", [dataset("train/shard-{000000..000099}.tar")])]
    for url in ("s3://b/train/", "s3://b/train/shard-000007.tar", "s3://b/train/shard-{000000..000049}.tar"):
        assert Held(nodes).of([url]) == [Holding("a", "z", 1.0)]
