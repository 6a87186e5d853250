"""The list of members that is kept for a start without its source, and reports of members."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from outrider.core.cluster.member import ListedMember
from outrider.core.cluster.membership import AWAY_S
from outrider.core.cluster.messages import Hello
from tests.unit.cluster.nodes import WALL_S, Node, hello, member, under


def test_the_kept_list_serves_until_the_source_answers() -> None:
    kept = json.loads(json.dumps(Node().knows("abc").membership.kept))
    node = Node(kept=kept)
    assert (node.ring, node.acting, node.alive) == ("abc", "a", "")
    assert node.membership.to_greet == ["b:9482", "c:9482"]
    assert [each.away_since for each in node.membership.view.states] == [node.now] * 2
    node.receives("b")
    assert (node.acting, node.alive) == ("ab", "b")
    node.lists()
    node.passes(AWAY_S)
    assert node.ring == "abc"
    node.passes(0.1)
    assert node.ring == "ab"  # c never answered; the list without b has been believed for 0.1 s
    node.passes(AWAY_S)
    assert node.ring == "a"


def test_members_that_were_never_in_a_ring_are_not_kept() -> None:
    node = Node().knows("ab")
    node.lists("a", "b", "c")
    node.receives(hello("c", ready=False))
    assert Node(kept=node.membership.kept).ring == "ab"


def test_the_kept_list_of_another_cluster_is_of_no_use() -> None:
    kept = Node().knows("abc").membership.kept
    node = Node(replace(member("a"), cluster_id="c2"), kept=kept)
    assert (node.ring, node.membership.to_greet) == ("a", [])


GOOD = {"name": "b", "address": "b:1", "zone": "z1", "weight_bytes": 1, "cluster_id": "c1", "wire": [1, 1]}


@pytest.mark.parametrize(
    "kept",
    [
        None, [], {}, "x", {"members": None}, {"members": {}}, {"members": [None, 1, [], {}]},
        *({"members": [{**GOOD, field: None}]} for field in GOOD),
        *({"members": [{**GOOD, **no}]} for no in ({"wire": [1]}, {"weight_bytes": -1}, {"name": ""}, {"name": "a"})),
    ],
)  # fmt: skip
def test_a_kept_list_that_is_garbage_is_ignored(kept: object) -> None:
    assert Node(kept={"members": [GOOD]}).ring == "ab"
    assert Node(kept=kept).ring == "a"


def test_the_state_of_a_member_shows_its_clock_and_its_ring() -> None:
    node = Node()
    node.lists("a", "b")
    node.receives(Hello(member("b"), 7, "feed", 0, WALL_S + 400))
    (state,) = node.membership.view.states
    assert (state.boot, state.ring, state.skew_s) == (7, "feed", 400.0)
    assert state.is_alive  # a wrong clock is reported, and nothing else


def test_a_greeting_of_a_member_that_is_not_known_as_it_is_now_is_news() -> None:
    node = Node()
    assert node.membership.news_from(hello("b")) is None  # not listed
    node.lists("a", "b")
    assert node.membership.news_from(hello("b")) == "b:9482"
    node.receives("b")
    assert node.membership.news_from(hello("b")) is None
    assert node.membership.news_from(hello("b", 101)) == "b:9482"
    assert node.membership.news_from(hello("b", leaving=True)) == "b:9482"
    node.fails("b")
    assert node.membership.news_from(hello("b")) == "b:9482"


def test_a_greeting_does_not_say_where_its_member_is() -> None:
    """Otherwise a stranger with the key could have its own address asked for blocks."""
    node = Node().knows("ab")
    elsewhere = hello(under(member("b"), "evil:1"), 101)
    assert node.membership.news_from(elsewhere) == "b:9482"
    node.lists("a", ListedMember("10.0.0.1:1"))
    assert node.membership.news_from(elsewhere) is None


def test_a_member_is_one_that_a_list_has_or_had() -> None:
    node = Node()
    assert not node.membership.view.is_member("b")
    node.lists("a", "b")
    assert node.membership.view.is_member("b"), "before it was greeted"
    assert not node.membership.view.is_member("c")
    assert not node.membership.view.is_member("a"), "another process of this node's name"
    node.receives("b")
    node.lists("a", "c", "d")
    assert node.membership.view.is_member("b"), "a list may lose it for a moment"
    node.passes(AWAY_S / 2)
    node.passes(AWAY_S)
    assert not node.membership.view.is_member("b")


def test_numbers_of_what_is_left_out_do_not_count() -> None:
    node = Node()
    counts = node.membership.counts
    assert counts("b", 100), "it may have joined just now"
    node.lists("a", ListedMember("x:1"), ListedMember("y:1"), ListedMember("z:1", "c"))
    node.receives(hello("b", 200), at="x:1")
    node.receives(hello("b", 100), at="y:1")
    node.receives(hello("d", 100), at="z:1")
    assert node.left_out == [("b", "duplicate name"), ("d", "name")]
    assert (counts("b", 200), counts("b", 100), counts("b", 300)) == (True, False, True)
    assert (counts("d", 100), counts("a", 100), counts("a", 101)) == (False, False, False)
    node.receives(hello(replace(member("b"), cluster_id="c2"), 201), at="x:1")
    assert not counts("b", 201)
