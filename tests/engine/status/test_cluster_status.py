"""The part of the status document for the cluster: each member once, with its state and the reason for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outrider.core.cluster.member import ListedMember
from outrider.core.cluster.messages import Hello
from outrider.core.cluster.peer_health import PeersHealth
from outrider.core.cluster.view import View
from outrider.engine.status.cluster_part import ClusterPart
from outrider.metrics import Metrics
from tests.unit.cluster.nodes import GIB, Node, hello, member


class Members:
    """Implements `cluster_part.SeenMembers` over a real membership."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.health = PeersHealth()
        self.metrics = Metrics()
        self.part = ClusterPart(
            self, self.metrics, lambda: node.now, source="file:members", domain="zone", near=lambda: (3, 300)
        )

    @property
    def view(self) -> View:
        return self.node.membership.view

    def mine(self) -> Hello:
        return hello(self.view.me, 100)

    @property
    def members(self) -> dict[str, dict[str, Any]]:
        """The members by name, or by address where they have none."""
        return {each["name"] or each["address"]: each for each in self.part.document()["members"]}

    def states(self) -> dict[str, tuple[str, str]]:
        return {name: (each["state"], each["why"]) for name, each in self.members.items()}

    def gauge(self, state: str) -> float:
        self.metrics.text()
        return self.metrics.value("outrider_peer_members", state=state)


def test_this_node_is_among_its_members() -> None:
    seen = Members(Node().knows("ab"))
    document = seen.part.document()
    assert (document["name"], document["address"], document["zone"]) == ("a", "a:9482", "z1")
    assert (document["source"], document["domain"], document["boot"]) == ("file:members", "zone", 100)
    assert (document["near_blocks"], document["near_bytes"]) == (3, 300)
    assert document["ring"] == seen.view.ring.digest
    assert document["is_listed"]
    assert [each["name"] for each in document["members"]] == ["a", "b"]
    assert {name: each["is_me"] for name, each in seen.members.items()} == {"a": True, "b": False}
    assert seen.members["a"]["weight_bytes"] == GIB
    assert seen.states() == {"a": ("alive", ""), "b": ("alive", "")}
    assert document["states"] == {"alive": 2, "away": 0, "left_out": 0}


def test_a_member_that_does_not_answer_is_away_since_then() -> None:
    seen = Members(Node().knows("abc"))
    seen.node.fails("b")
    seen.node.passes(7.0)
    assert seen.states()["b"] == ("away", "")
    assert seen.members["b"]["since_s"] == 7.0
    assert seen.members["c"]["since_s"] is None
    assert seen.members["b"]["in_ring"], "a restart moves nothing"
    seen.node.receives("b")
    assert seen.states()["b"] == ("alive", "")


def test_a_member_that_never_answered_is_shown_by_its_address() -> None:
    seen = Members(Node())
    seen.node.lists("a", "b", ListedMember("10.0.0.9:1", zone="z3", weight_bytes=5))
    assert seen.states() == {
        "a": ("alive", ""),
        "b": ("away", "never answered"),
        "10.0.0.9:1": ("away", "never answered"),
    }
    assert (seen.members["10.0.0.9:1"]["zone"], seen.members["10.0.0.9:1"]["weight_bytes"]) == ("z3", 5)


def test_members_that_do_not_fit_are_left_out_with_the_reason() -> None:
    seen = Members(Node())
    seen.node.lists("a", "b")
    seen.node.receives(replace(hello("b"), member=replace(member("b"), cluster_id="c2")))
    assert seen.states()["b"] == ("left_out", "cluster id: c2")
    assert seen.members["b"]["address"] == "b:9482"


def test_the_status_shows_a_name_used_twice_with_both_addresses() -> None:
    seen = Members(Node())
    seen.node.lists("a", ListedMember("x:1"), ListedMember("y:1"), ListedMember("z:1"))
    seen.node.receives(hello("b", 200), at="x:1")
    assert seen.part.document()["names_used_twice"] == {}
    seen.node.receives(hello("b", 100), at="y:1")
    seen.node.receives(hello("a", 100_000), at="z:1")
    assert seen.part.document()["names_used_twice"] == {"a": ["a:9482", "z:1"], "b": ["x:1", "y:1"]}
    assert seen.node.events[-2:] == [("name used twice", "b"), ("name used twice", "a")]
    seen.node.receives(hello("b", 100), at="y:1")
    assert seen.node.events == [], "said once"
    seen.node.lists("a", ListedMember("x:1"))
    assert seen.part.document()["names_used_twice"] == {}


def test_members_that_are_slow_or_fail_are_left_out_with_the_reason() -> None:
    seen = Members(Node().knows("abc"))
    seen.health.of("b").leave_out(seen.node.now)
    for _ in range(3):
        seen.health.of("c").failed("broke", seen.node.now)
    assert seen.states() == {
        "a": ("alive", ""), "b": ("left_out", "slower than the bucket"), "c": ("left_out", "its reads fail"),
    }  # fmt: skip
    assert seen.members["c"]["breaker"] == "open"


def test_a_member_that_the_list_has_no_more_is_alive_while_it_answers() -> None:
    seen = Members(Node().knows("abc"))
    seen.node.lists("a", "b")
    assert seen.states()["c"] == ("alive", "not listed")
    seen.node.fails("c")
    assert seen.states()["c"] == ("away", "not listed")


def test_the_traffic_with_each_member_is_shown() -> None:
    seen = Members(Node().knows("abc"))
    peers = seen.metrics.peers
    peers.bytes.labels(peers.label("b"), "in").inc(10)
    peers.bytes.labels(peers.label("b"), "out").inc(3)
    peers.requests.labels("b", "ok").inc(4)
    peers.requests.labels("b", "late").inc()
    health = seen.health.of("b")
    for why in ("absent", "busy", "late", "broke"):
        health.failed(why, 0.0)
    for wait_s in (0.001, 0.002, 0.003):
        health.replied(wait_s)
    b, c = seen.members["b"], seen.members["c"]
    assert (b["bytes_in"], b["bytes_out"], b["requests"]) == (10, 3, 5)
    assert (c["bytes_in"], c["bytes_out"], c["requests"]) == (0, 0, 0)
    assert b["failures"] == 2, "a member that has not got a block, or is busy, did not fail"
    assert b["failures_by_why"] == {"absent": 1, "broke": 1, "busy": 1, "late": 1}
    assert b["latency_s"] == {"p50": 0.002, "p99": 0.002}
    assert c["latency_s"] == {"p50": None, "p99": None}


def test_members_that_share_a_label_have_no_traffic_of_their_own() -> None:
    names = [f"n{number:02d}" for number in range(70)]
    node = Node()
    node.lists("a", *names)
    node.receives(*names)
    seen = Members(node)
    members = seen.members
    assert [members[name]["bytes_in"] for name in (names[0], names[63], names[64])] == [0, 0, None]


def test_the_gauge_counts_the_other_members_by_state() -> None:
    seen = Members(Node().knows("abcd"))
    seen.node.lists(*"abcde")
    seen.node.fails("b")
    seen.health.of("c").leave_out(seen.node.now)
    assert [seen.gauge(state) for state in ("alive", "away", "left_out")] == [1, 2, 1]
    seen.node.receives("b", "e")
    assert [seen.gauge(state) for state in ("alive", "away", "left_out")] == [3, 0, 1]


def test_disagreements_are_counted() -> None:
    seen = Members(Node().knows("ab"))
    assert seen.part.document()["ring_disagreements"] == 0
    seen.metrics.peers.ring_disagreements.inc(4)
    assert seen.part.document()["ring_disagreements"] == 4
