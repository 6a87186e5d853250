"""Members of a cluster as one node sees them: joining, leaving, moving to another address, left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.core.cluster.member import ListedMember
from outrider.core.cluster.membership import AWAY_S, Domain
from outrider.core.cluster.messages import Hello
from tests.unit.cluster.nodes import GIB, REFS, WALL_S, Node, hello, member, silent, under


def test_a_node_alone_owns_everything() -> None:
    node = Node()
    assert (node.ring, node.acting, node.alive) == ("a", "a", "")
    view = node.membership.view
    assert view.is_mine(REFS[0], 0)
    assert view.acting_owner(REFS[0], 0) == node.me
    assert view.previous_owner(REFS[0], 0) is None
    assert view.is_listed is False


def test_a_listed_member_is_in_the_ring_once_it_answered_and_is_ready() -> None:
    node = Node()
    node.lists("a", "b", "c")
    assert node.membership.view.is_listed
    assert node.membership.to_greet == ["b:9482", "c:9482"]
    assert (node.ring, node.alive) == ("a", "")
    node.receives(hello("b", ready=False))
    assert (node.ring, node.alive) == ("a", "")
    node.receives("b")
    assert (node.ring, node.acting, node.alive) == ("ab", "ab", "b")
    assert node.events == [("joined", "b")]


def test_an_entry_is_silent_until_somebody_answered_there() -> None:
    node = Node()
    b, c, d = ListedMember("b:9482", "b"), ListedMember("c:9482"), ListedMember("d:9482", "d")
    node.lists("a", b, c, d)
    assert silent(node) == [b, c, d]
    node.receives("b", "c")
    node.receives(replace_id(hello("d")))
    assert silent(node) == []
    node.fails("b")
    assert silent(node) == [], "it answered before"
    node.lists("a", b, c, "e")
    assert silent(node) == [ListedMember("e:9482", "e")]
    node.lists("a", b, c)
    assert silent(node) == []


def replace_id(sent: Hello) -> Hello:
    return replace(sent, member=replace(sent.member, cluster_id="another"))


def test_a_list_without_names_is_completed_by_hellos() -> None:
    node = Node()
    node.lists(ListedMember("10.0.0.1:1"), ListedMember("10.0.0.2:1"))
    node.receives(
        under_hello := Hello(under(member("b", weight_bytes=7), "stated:1"), 5, "", 0, WALL_S), at="10.0.0.2:1"
    )
    node.receives(hello("a"), at="10.0.0.1:1")  # this process, under another address than it states
    view = node.membership.view
    assert view.alive["b"] == under(under_hello.member, "10.0.0.2:1")  # as the list says, not as it says itself
    assert view.is_listed
    assert node.membership.to_greet == ["10.0.0.2:1"]
    assert node.left_out == []


def test_the_list_gives_a_zone_to_those_that_have_none_and_a_weight_to_all() -> None:
    node = Node(replace(member("a"), zone="", weight_bytes=GIB))
    node.lists(
        ListedMember("a:9482", "a", "z9", 5 * GIB),
        ListedMember("b:9482", "b", "z9", 6 * GIB),
        ListedMember("c:9482", "c", "z9"),
    )
    node.receives(hello(replace(member("b"), zone="", weight_bytes=GIB)), hello(member("c", "z9", 8 * GIB)))
    assert node.membership.view.me == member("a", "z9", 5 * GIB)
    assert [(each.zone, each.weight_bytes) for each in node.membership.view.ring.members] == [
        ("z9", 5 * GIB),
        ("z9", 6 * GIB),
        ("z9", 8 * GIB),
    ]


def test_a_member_of_another_zone_is_alive_and_in_no_ring_of_this_zone() -> None:
    elsewhere = hello(member("b", "z2"))
    node = Node()
    node.lists("a", "b", "c")
    node.receives(elsewhere, "c")
    assert (node.ring, node.acting, node.alive) == ("ac", "ac", "bc")
    wide = Node(domain=Domain.CLUSTER)
    wide.lists("a", "b", "c")
    wide.receives(elsewhere, "c")
    assert (wide.ring, wide.acting) == ("abc", "abc")


def test_a_node_is_settled_when_each_listed_member_answered_or_did_not() -> None:
    node = Node()
    node.passes(1.0)
    assert not node.membership.is_settled
    node.lists("a", "b", "c")
    node.receives("b")
    assert not node.membership.is_settled
    node.fails("c")
    assert node.membership.is_settled


def test_a_node_is_settled_after_a_while_without_a_list() -> None:
    node = Node()
    node.passes(9.9)
    assert not node.membership.is_settled
    node.passes(0.1)
    assert node.membership.is_settled


def test_a_member_that_does_not_answer_is_away_at_once_and_in_the_ring_for_two_minutes() -> None:
    node = Node().knows("abc")
    node.fails("b")
    since = node.now
    assert (node.ring, node.acting, node.alive) == ("abc", "ac", "c")
    assert [each.away_since for each in node.membership.view.states] == [since, None]
    node.passes(AWAY_S)
    node.fails("b")
    assert node.ring == "abc"
    node.passes(0.1)
    assert node.ring == "ac"
    assert node.events == [("away", "b"), ("left", "b")]
    assert "b:9482" in node.membership.to_greet  # it is still listed
    node.receives("b")
    assert node.ring == "abc"
    assert node.events == [("joined", "b")]


def test_a_restart_moves_nothing() -> None:
    node = Node().knows("abc")
    digest = node.membership.view.ring.digest
    node.fails("b")
    node.passes(60)
    node.receives(hello("b", 200, ready=False))
    assert (node.acting, node.membership.view.ring.digest) == ("ac", digest)
    node.receives(hello("b", 200))
    assert (node.acting, node.membership.view.ring.digest) == ("abc", digest)
    assert node.events == [("away", "b"), ("back", "b")]


def test_a_member_that_is_no_longer_listed_leaves_after_two_minutes_even_if_it_answers() -> None:
    node = Node().knows("abc")
    node.lists("a", "b")
    assert (node.ring, node.acting, node.alive) == ("abc", "abc", "bc")
    node.passes(AWAY_S)
    node.receives("c")
    assert node.ring == "abc"
    node.passes(0.1)
    assert (node.ring, node.alive) == ("ab", "b")
    assert node.membership.to_greet == ["b:9482"]
    assert [each.member.name for each in node.membership.view.states] == ["b"]


def test_a_list_that_is_empty_changes_nothing_for_a_minute() -> None:
    node = Node().knows("abcd")
    node.lists()
    node.passes(59)
    assert (node.ring, node.acting, node.alive) == ("abcd", "abcd", "bcd")
    assert len(node.membership.to_greet) == 3
    node.passes(1)
    assert node.ring == "abcd"
    assert node.events == [("list doubted", ""), ("list believed", ""), ("away", "b"), ("away", "c"), ("away", "d")]
    node.passes(AWAY_S + 1)
    assert node.ring == "a"


def test_a_member_that_leaves_takes_nothing_new_and_is_asked_for_what_it_has() -> None:
    node = Node().knows("abc")
    before = {ref: node.membership.view.acting_owner(ref, 0).name for ref in REFS}
    node.membership.leaves("b", 99, node.now)  # another process of that name
    assert node.acting == "abc"
    node.membership.leaves("b", 100, node.now)
    view = node.membership.view
    assert (node.ring, node.acting, node.alive) == ("abc", "ac", "bc")
    assert node.events == [("leaving", "b")]
    for ref in REFS:
        if before[ref] == "b":
            assert view.acting_owner(ref, 0) == next(each for each in view.ring.owners(ref, 0) if each.name != "b")
            assert view.previous_owner(ref, 0) == member("b")
        else:
            assert view.acting_owner(ref, 0).name == before[ref]
    node.receives(hello("b"))  # written before it said so
    assert node.acting == "ac"
    node.receives(hello("b", 101))  # its next process
    assert node.acting == "abc"


def test_a_hello_says_that_a_member_leaves() -> None:
    node = Node().knows("abc")
    node.receives(hello("c", leaving=True))
    assert (node.ring, node.acting, node.alive) == ("abc", "ab", "bc")
    assert node.events == [("leaving", "c")]


def test_a_node_that_leaves_itself_takes_nothing_new_while_others_are_there() -> None:
    node = Node().knows("ab")
    node.membership.i_leave(node.now)
    assert (node.ring, node.acting) == ("ab", "b")
    node.fails("b")
    assert node.acting == "a"


def test_a_member_under_another_address_is_the_same_member() -> None:
    node = Node().knows("abc")
    digest = node.membership.view.ring.digest
    node.lists("a", "c", ListedMember("new:1", "b"))
    assert "b:9482" in node.membership.to_greet  # until the new address answers
    node.receives(hello("b", 200), at="new:1")
    view = node.membership.view
    assert view.ring.digest == digest
    assert view.alive["b"].address == "new:1"
    assert {each.address for each in view.ring.members} == {"a:9482", "new:1", "c:9482"}
    assert node.membership.to_greet == ["c:9482", "new:1"]
    assert ("moved", "b") in node.events


def test_a_member_that_is_away_is_greeted_where_the_list_has_it_now() -> None:
    node = Node().knows("abc")
    node.fails("b")
    node.lists("a", "c", ListedMember("new:1", "b"))
    assert node.membership.to_greet == ["c:9482", "new:1"]


def test_a_wrong_name_at_an_address_is_refused() -> None:
    """A pod's address was given to another pod before the list says so."""
    node = Node().knows("abc")
    node.receives(hello("d"), at="b:9482")
    assert (node.ring, node.acting, node.alive) == ("abc", "ac", "c")
    assert node.left_out == [("d", "name")]
    assert node.membership.view.left_out[0].detail == "b"
    node.lists("a", "c", ListedMember("b:9482", "d"))
    node.receives(hello("d"), at="b:9482")
    assert (node.acting, node.left_out) == ("acd", [])


def test_an_address_that_was_taken_over_in_a_list_without_names() -> None:
    node = Node()
    node.lists(ListedMember("a:9482"), ListedMember("x:1"), ListedMember("y:1"))
    node.receives("b", at="x:1")
    node.receives("c", at="y:1")
    node.receives("d", at="x:1")
    assert (node.ring, node.acting) == ("abcd", "acd")
    node.passes(AWAY_S + 1)
    assert node.ring == "acd"
    assert [each.member.name for each in node.membership.view.states] == ["c", "d"]


def test_one_process_at_two_addresses_is_one_member_that_does_not_move() -> None:
    node = Node()
    node.lists(ListedMember("x:1"), ListedMember("y:1"))
    for _ in range(2):
        node.receives("b", at="x:1")
        node.receives("b", at="y:1")
    assert node.events == [("joined", "b")]
    assert node.membership.view.alive["b"].address == "x:1"
    node.membership.unanswered("y:1", node.now)
    assert node.alive == "b"
    node.membership.unanswered("x:1", node.now)
    assert node.alive == ""
    node.receives("b", at="y:1")
    assert node.membership.view.alive["b"].address == "y:1"


def test_of_two_processes_with_one_name_the_later_one_counts() -> None:
    node = Node()
    node.lists(ListedMember("x:1"), ListedMember("y:1"))
    node.receives(hello("b", 200), at="x:1")
    node.receives(hello("b", 100), at="y:1")
    assert node.membership.view.alive["b"].address == "x:1"
    assert node.left_out == [("b", "duplicate name")]
    node.membership.unanswered("x:1", node.now)
    node.receives(hello("b", 100), at="y:1")
    assert node.membership.view.alive["b"].address == "y:1"
    assert node.left_out == []


def test_another_process_with_the_name_of_this_node_is_left_out() -> None:
    node = Node()
    node.lists("a", ListedMember("x:1"))
    node.receives(hello("a", 101), at="x:1")
    assert node.left_out == [("a", "duplicate name")]
    assert node.ring == "a"


def test_another_cluster_id_is_left_out_and_named() -> None:
    node = Node()
    node.lists("a", "b")
    node.receives(hello(replace(member("b"), cluster_id="c2")))
    assert (node.ring, node.alive) == ("a", "")
    assert node.left_out == [("b", "cluster id")]
    assert node.events == [("left out", "b")]
    node.receives(hello(replace(member("b"), cluster_id="c2")))
    assert node.events == []  # said once
    node.receives("b")
    assert (node.ring, node.left_out) == ("ab", [])


def test_a_member_that_comes_back_with_another_cluster_id_is_asked_no_more() -> None:
    node = Node().knows("abc")
    node.receives(hello(replace(member("b"), cluster_id="c2"), 200))
    assert (node.acting, node.alive) == ("ac", "c")
    node.passes(AWAY_S + 1)
    assert node.ring == "ac"


@pytest.mark.parametrize(
    ("wire", "fits"), [((1, 1), True), ((1, 3), True), ((3, 3), False), ((0, 0), False), ((0, 1), True)]
)
def test_wire_versions_have_to_overlap(wire: tuple[int, int], fits: bool) -> None:
    node = Node()
    node.lists("a", "b")
    node.receives(hello(replace(member("b"), wire=wire)))
    assert node.ring == ("ab" if fits else "a")
    assert node.left_out == ([] if fits else [("b", "wire version")])


def test_a_member_that_is_left_out_is_forgotten_with_its_listing() -> None:
    node = Node()
    node.lists("a", "b", "c")
    node.receives(hello(replace(member("b"), cluster_id="c2")))
    node.lists("a", "c")
    assert node.left_out == []
