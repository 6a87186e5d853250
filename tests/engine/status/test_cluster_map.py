"""The map of datasets over the cluster: which member holds which share of each."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from outrider.core.cluster.messages import SHARES_MAX, DatasetShare, DatasetShares, SharesRequest
from outrider.core.model import ObjectRef
from outrider.engine.status.cluster_map import added_up
from tests.support.engine import BLOCK
from tests.support.fakes import RAMP
from tests.support.members import Cluster, cluster

SHARDS = [ObjectRef("train", f"shard-{number:04d}.tar") for number in range(12)]


async def filled(nodes: Cluster, readers: str) -> None:
    for ref in SHARDS:
        nodes.origin.put(ref, RAMP[:BLOCK])
    await nodes.meet()
    for name in readers:
        for ref in SHARDS:
            await nodes[name].get(ref)
    await nodes.settle()


def only(document: dict[str, Any]) -> dict[str, Any]:
    (row,) = document["datasets"]
    assert (row["bucket"], row["name"], row["objects"]) == ("train", "shard-{}.tar", len(SHARDS))
    return dict(row)


async def test_each_member_shows_the_same_map_of_what_all_hold(tmp_path: Path) -> None:
    with cluster(tmp_path, policy="epoch") as nodes:
        await filled(nodes, "abc")
        owned = {name: sum(nodes[name].owns(ref) for ref in SHARDS) for name in "abc"}
        for node in nodes:
            document = await node.map.document()
            assert (document["name"], document["members"], document["silent"]) == (node.name, ["a", "b", "c"], [])
            row = only(document)
            assert row["held"] == 1.0
            assert (row["bytes"], row["held_bytes"]) == (len(SHARDS) * BLOCK, len(SHARDS) * BLOCK)
            for name, part in row["members"].items():
                copies = part["copies_bytes"] / part["bytes"]
                assert round(len(SHARDS) * part["share"] * (1 - copies)) == owned[name]
            assert row["copies_bytes"] == sum(part["copies_bytes"] for part in row["members"].values()) > 0


async def test_a_member_that_fails_and_one_that_is_away_are_named(tmp_path: Path) -> None:
    with cluster(tmp_path, policy="epoch") as nodes:
        await filled(nodes, "abc")
        edge = nodes["a"]
        before = only(await edge.map.document())
        nodes.clock.advance(2)
        # Its process has gone, and nobody has noticed.
        del edge.wire.services["c:9482"]
        document = await edge.map.document()
        assert (document["members"], document["silent"]) == (["a", "b"], [{"name": "c", "why": "connect"}])
        assert only(document)["members"] == {name: before["members"][name] for name in "ab"}
        assert only(document)["held"] < 1.0
        edge.members.lost(edge.membership.view.alive["c"])
        nodes.clock.advance(2)
        assert (await edge.map.document())["silent"] == [{"name": "c", "why": "away"}]


async def test_questions_within_two_seconds_ask_the_members_once(tmp_path: Path) -> None:
    with cluster(tmp_path, policy="epoch") as nodes:
        await filled(nodes, "a")
        edge = nodes["a"]
        await asyncio.gather(*(edge.map.document() for _ in range(5)))
        nodes.clock.advance(1)
        await edge.map.document()
        assert sorted(edge.wire.shares_asked) == ["b", "c"]
        nodes.clock.advance(1)
        await edge.map.document()
        assert sorted(edge.wire.shares_asked) == ["b", "b", "c", "c"]


def test_the_size_is_that_of_all_objects_that_any_member_knows() -> None:
    one = DatasetShare("b", "n", 26, 104, 104, 0, tuple((number, 4) for number in range(26)))
    two = DatasetShare("b", "n", 14, 56, 56, 0, tuple((number, 4) for number in range(26, 40)))
    (row,) = added_up({"node-1": [two], "node-2": [one]})
    assert (row["objects"], row["bytes"], row["held"]) == (40, 160, 1.0)
    assert {name: part["share"] for name, part in row["members"].items()} == {"node-1": 0.35, "node-2": 0.65}


def test_of_members_that_name_no_objects_the_one_that_knows_most_gives_the_size() -> None:
    one, two = DatasetShare("b", "n", 2, 200, 100, 0), DatasetShare("b", "n", 10, 1000, 400, 300)
    (row,) = added_up({"x": [one], "y": [two]})
    assert (row["objects"], row["bytes"], row["held_bytes"], row["copies_bytes"]) == (10, 1000, 200, 300)
    assert row["held"] == 0.2
    assert {name: part["share"] for name, part in row["members"].items()} == {"x": 0.1, "y": 0.4}


def test_a_dataset_of_unknown_size_has_no_share() -> None:
    (row,) = added_up({"x": [DatasetShare("b", "n", 0, 0, 100, 0)]})
    assert (row["held_bytes"], row["held"], row["members"]["x"]["share"]) == (100, 0.0, 0.0)


async def test_the_map_of_a_member_has_no_more_datasets_than_an_answer_may_have(tmp_path: Path) -> None:
    with cluster(tmp_path, policy="epoch") as nodes:
        await nodes.meet()
        for number in range(SHARES_MAX + 1):
            for shard in range(6):
                ref = ObjectRef("train", f"{chr(97 + number // 26)}{chr(97 + number % 26)}/shard-{shard:04d}.tar")
                nodes.origin.put(ref, RAMP[:BLOCK])
                await nodes["a"].get(ref)
        await nodes.settle()
        shares = await nodes["a"].service.answer(SharesRequest("b"))
        assert isinstance(shares, DatasetShares)
        assert len(shares.datasets) == SHARES_MAX
