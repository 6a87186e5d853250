"""The members as a node sees them: the slow ring, the fast acting, and those that are left out."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cluster.forget_numbers import ReceivedForgets
from outrider.core.cluster.member import ListedMember, Member
from outrider.core.cluster.membership import AWAY_S, PREVIOUS_S, Domain
from outrider.core.cluster.messages import Hello
from outrider.core.cluster.view import Why
from outrider.core.model import ObjectRef
from tests.unit.cluster.nodes import GIB, WALL_S, Node, hello, member, under

REFS = [ObjectRef("b", f"k{number}") for number in range(60)]


# -- joining --------------------------------------------------------------------------------------------------------


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
    node.hears(hello("b", ready=False))
    assert (node.ring, node.alive) == ("a", "")
    node.hears("b")
    assert (node.ring, node.acting, node.alive) == ("ab", "ab", "b")
    assert node.events == [("joined", "b")]


def test_an_entry_is_silent_until_somebody_answered_there() -> None:
    node = Node()
    b, c, d = ListedMember("b:9482", "b"), ListedMember("c:9482"), ListedMember("d:9482", "d")
    node.lists("a", b, c, d)
    assert silent(node) == [b, c, d]
    node.hears("b", "c")
    node.hears(replace_id(hello("d")))
    assert silent(node) == []
    node.fails("b")
    assert silent(node) == [], "it answered before"
    node.lists("a", b, c, "e")
    assert silent(node) == [ListedMember("e:9482", "e")]
    node.lists("a", b, c)
    assert silent(node) == []


def silent(node: Node) -> list[ListedMember]:
    return list(node.membership.view.silent)


def replace_id(told: Hello) -> Hello:
    return replace(told, member=replace(told.member, cluster_id="another"))


def test_a_list_without_names_is_completed_by_hellos() -> None:
    node = Node()
    node.lists(ListedMember("10.0.0.1:1"), ListedMember("10.0.0.2:1"))
    node.hears(under_hello := Hello(under(member("b", weight_bytes=7), "told:1"), 5, "", 0, WALL_S), at="10.0.0.2:1")
    node.hears(hello("a"), at="10.0.0.1:1")  # this process, under another address than it tells
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
    node.hears(hello(replace(member("b"), zone="", weight_bytes=GIB)), hello(member("c", "z9", 8 * GIB)))
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
    node.hears(elsewhere, "c")
    assert (node.ring, node.acting, node.alive) == ("ac", "ac", "bc")
    wide = Node(domain=Domain.CLUSTER)
    wide.lists("a", "b", "c")
    wide.hears(elsewhere, "c")
    assert (wide.ring, wide.acting) == ("abc", "abc")


def test_a_node_is_settled_when_each_listed_member_answered_or_did_not() -> None:
    node = Node()
    node.passes(1.0)
    assert not node.membership.is_settled
    node.lists("a", "b", "c")
    node.hears("b")
    assert not node.membership.is_settled
    node.fails("c")
    assert node.membership.is_settled


def test_a_node_is_settled_after_a_while_without_a_list() -> None:
    node = Node()
    node.passes(9.9)
    assert not node.membership.is_settled
    node.passes(0.1)
    assert node.membership.is_settled


# -- going away -----------------------------------------------------------------------------------------------------


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
    node.hears("b")
    assert node.ring == "abc"
    assert node.events == [("joined", "b")]


def test_a_restart_moves_nothing() -> None:
    node = Node().knows("abc")
    digest = node.membership.view.ring.digest
    node.fails("b")
    node.passes(60)
    node.hears(hello("b", 200, ready=False))
    assert (node.acting, node.membership.view.ring.digest) == ("ac", digest)
    node.hears(hello("b", 200))
    assert (node.acting, node.membership.view.ring.digest) == ("abc", digest)
    assert node.events == [("away", "b"), ("back", "b")]


def test_a_member_that_is_no_longer_listed_leaves_after_two_minutes_even_if_it_answers() -> None:
    node = Node().knows("abc")
    node.lists("a", "b")
    assert (node.ring, node.acting, node.alive) == ("abc", "abc", "bc")
    node.passes(AWAY_S)
    node.hears("c")
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
    node.hears(hello("b"))  # written before it said so
    assert node.acting == "ac"
    node.hears(hello("b", 101))  # its next process
    assert node.acting == "abc"


def test_a_hello_says_that_a_member_leaves() -> None:
    node = Node().knows("abc")
    node.hears(hello("c", leaving=True))
    assert (node.ring, node.acting, node.alive) == ("abc", "ab", "bc")
    assert node.events == [("leaving", "c")]


def test_a_node_that_leaves_itself_takes_nothing_new_while_others_are_there() -> None:
    node = Node().knows("ab")
    node.membership.i_leave(node.now)
    assert (node.ring, node.acting) == ("ab", "b")
    node.fails("b")
    assert node.acting == "a"


# -- addresses ------------------------------------------------------------------------------------------------------


def test_a_member_under_another_address_is_the_same_member() -> None:
    node = Node().knows("abc")
    digest = node.membership.view.ring.digest
    node.lists("a", "c", ListedMember("new:1", "b"))
    assert "b:9482" in node.membership.to_greet  # until the new address answers
    node.hears(hello("b", 200), at="new:1")
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
    node.hears(hello("d"), at="b:9482")
    assert (node.ring, node.acting, node.alive) == ("abc", "ac", "c")
    assert node.left_out == [("d", "name")]
    assert node.membership.view.left_out[0].detail == "b"
    node.lists("a", "c", ListedMember("b:9482", "d"))
    node.hears(hello("d"), at="b:9482")
    assert (node.acting, node.left_out) == ("acd", [])


def test_an_address_that_was_taken_over_in_a_list_without_names() -> None:
    node = Node()
    node.lists(ListedMember("a:9482"), ListedMember("x:1"), ListedMember("y:1"))
    node.hears("b", at="x:1")
    node.hears("c", at="y:1")
    node.hears("d", at="x:1")
    assert (node.ring, node.acting) == ("abcd", "acd")
    node.passes(AWAY_S + 1)
    assert node.ring == "acd"
    assert [each.member.name for each in node.membership.view.states] == ["c", "d"]


def test_one_process_at_two_addresses_is_one_member_that_does_not_move() -> None:
    node = Node()
    node.lists(ListedMember("x:1"), ListedMember("y:1"))
    for _ in range(2):
        node.hears("b", at="x:1")
        node.hears("b", at="y:1")
    assert node.events == [("joined", "b")]
    assert node.membership.view.alive["b"].address == "x:1"
    node.membership.unanswered("y:1", node.now)
    assert node.alive == "b"
    node.membership.unanswered("x:1", node.now)
    assert node.alive == ""
    node.hears("b", at="y:1")
    assert node.membership.view.alive["b"].address == "y:1"


def test_of_two_processes_with_one_name_the_later_one_counts() -> None:
    node = Node()
    node.lists(ListedMember("x:1"), ListedMember("y:1"))
    node.hears(hello("b", 200), at="x:1")
    node.hears(hello("b", 100), at="y:1")
    assert node.membership.view.alive["b"].address == "x:1"
    assert node.left_out == [("b", "duplicate name")]
    node.membership.unanswered("x:1", node.now)
    node.hears(hello("b", 100), at="y:1")
    assert node.membership.view.alive["b"].address == "y:1"
    assert node.left_out == []


def test_another_process_with_the_name_of_this_node_is_left_out() -> None:
    node = Node()
    node.lists("a", ListedMember("x:1"))
    node.hears(hello("a", 101), at="x:1")
    assert node.left_out == [("a", "duplicate name")]
    assert node.ring == "a"


# -- left out -------------------------------------------------------------------------------------------------------


def test_another_cluster_id_is_left_out_and_named() -> None:
    node = Node()
    node.lists("a", "b")
    node.hears(hello(replace(member("b"), cluster_id="c2")))
    assert (node.ring, node.alive) == ("a", "")
    assert node.left_out == [("b", "cluster id")]
    assert node.events == [("left out", "b")]
    node.hears(hello(replace(member("b"), cluster_id="c2")))
    assert node.events == []  # said once
    node.hears("b")
    assert (node.ring, node.left_out) == ("ab", [])


def test_a_member_that_comes_back_with_another_cluster_id_is_asked_no_more() -> None:
    node = Node().knows("abc")
    node.hears(hello(replace(member("b"), cluster_id="c2"), 200))
    assert (node.acting, node.alive) == ("ac", "c")
    node.passes(AWAY_S + 1)
    assert node.ring == "ac"


@pytest.mark.parametrize(
    ("wire", "fits"), [((1, 1), True), ((1, 3), True), ((3, 3), False), ((0, 0), False), ((0, 1), True)]
)
def test_wire_versions_have_to_overlap(wire: tuple[int, int], fits: bool) -> None:
    node = Node()
    node.lists("a", "b")
    node.hears(hello(replace(member("b"), wire=wire)))
    assert node.ring == ("ab" if fits else "a")
    assert node.left_out == ([] if fits else [("b", "wire version")])


def test_a_member_that_is_left_out_is_forgotten_with_its_listing() -> None:
    node = Node()
    node.lists("a", "b", "c")
    node.hears(hello(replace(member("b"), cluster_id="c2")))
    node.lists("a", "c")
    assert node.left_out == []


# -- previous owners ------------------------------------------------------------------------------------------------


def test_the_previous_owner_of_a_block_is_known_for_an_hour() -> None:
    node = Node().knows("ab")
    node.passes(PREVIOUS_S)  # the hour after its own start is over
    before = {ref: node.membership.view.acting_owner(ref, 0) for ref in REFS}
    node.lists("a", "b", "c")
    node.hears("c")
    view = node.membership.view
    moved = [ref for ref in REFS if view.acting_owner(ref, 0) != before[ref]]
    assert 0 < len(moved) < len(REFS)
    for ref in REFS:
        previous = view.previous_owner(ref, 0)
        if ref in moved and before[ref].name != "a":
            assert previous == before[ref]
        else:
            assert previous is None  # unmoved, or this node has it
    node.passes(PREVIOUS_S - 0.1)
    assert node.membership.view.previous
    node.passes(0.1)
    assert not node.membership.view.previous


def test_a_node_that_begins_asks_those_that_took_its_blocks() -> None:
    node = Node().knows("abc")
    view = node.membership.view
    for ref in REFS:
        owners = view.ring.owners(ref, 0)
        if owners[0] == node.me:
            assert view.previous_owner(ref, 0) == owners[1]
    node.passes(PREVIOUS_S)
    assert not node.membership.view.previous


def test_a_previous_owner_that_is_not_alive_is_not_named() -> None:
    node = Node().knows("abc")
    node.fails("b", "c")
    assert [node.membership.view.previous_owner(ref, 0) for ref in REFS] == [None] * len(REFS)


def test_the_owner_before_a_previous_owner_that_is_dead_is_named() -> None:
    node = Node().knows("abc")
    node.passes(PREVIOUS_S)
    node.membership.leaves("c", 100, node.now)
    node.fails("b")
    view = node.membership.view
    assert [str(ring) for ring in view.previous] == ["Ring(a, b)", "Ring(a, b, c)"]
    for ref in REFS:
        was_c = Node().knows("abc").membership.view.ring.owner(ref, 0).name == "c"
        assert view.previous_owner(ref, 0) == (member("c") if was_c else None)


def test_rings_of_the_start_are_not_remembered() -> None:
    """While the first hellos come in, a node knows only a part of the ring."""
    node = Node().knows("abcd")
    assert [str(ring) for ring in node.membership.view.previous] == ["Ring(b, c, d)"]


def test_a_previous_owner_is_named_by_its_address_of_now() -> None:
    node = Node().knows("ab")
    node.membership.leaves("b", 100, node.now)
    node.lists("a", ListedMember("new:1", "b"))
    node.hears(hello("b", 100, leaving=True), at="new:1")
    node.membership.unanswered("b:9482", node.now)
    node.hears(hello("b", 100, leaving=True), at="new:1")
    found = {node.membership.view.previous_owner(ref, 0) for ref in REFS}
    assert found == {None, under(member("b"), "new:1")}


def test_a_ring_that_comes_and_goes_is_remembered_once() -> None:
    node = Node().knows("abcd")
    node.passes(PREVIOUS_S)
    for _ in range(20):
        node.fails("b")
        node.hears("b")
    assert [str(ring) for ring in node.membership.view.previous] == ["Ring(a, c, d)"]


def test_few_previous_rings_are_remembered() -> None:
    node = Node().knows("abcdefgh")
    node.passes(PREVIOUS_S)
    for gone in "bcdefgh":
        node.fails(gone)
    for back in "bcdefgh":
        node.hears(back)
    assert len(node.membership.view.previous) == 8


def test_a_ring_keeps_its_memo_while_its_members_stay() -> None:
    node = Node().knows("abc")
    ring, acting, previous = node.membership.view.ring, node.membership.view.acting, node.membership.view.previous
    node.passes(1)
    node.hears("b", "c")
    view = node.membership.view
    assert view.ring is ring
    assert view.acting is acting
    assert view.previous[-1] is previous[-1]


def test_a_block_of_an_owner_that_is_away_is_not_near() -> None:
    node = Node().knows("ab")
    node.fails("b")
    assert all(node.membership.view.is_mine(ref, 0) for ref in REFS)
    node.hears("b")
    mine = [node.membership.view.is_mine(ref, 0) for ref in REFS]
    assert True in mine
    assert False in mine


# -- the list that is kept ------------------------------------------------------------------------------------------


def test_the_kept_list_serves_until_the_source_answers() -> None:
    kept = json.loads(json.dumps(Node().knows("abc").membership.kept))
    node = Node(kept=kept)
    assert (node.ring, node.acting, node.alive) == ("abc", "a", "")
    assert node.membership.to_greet == ["b:9482", "c:9482"]
    assert [each.away_since for each in node.membership.view.states] == [node.now] * 2
    node.hears("b")
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
    node.hears(hello("c", ready=False))
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


# -- reports --------------------------------------------------------------------------------------------------------


def test_the_state_of_a_member_tells_its_clock_and_its_ring() -> None:
    node = Node()
    node.lists("a", "b")
    node.hears(Hello(member("b"), 7, "feed", 0, WALL_S + 400))
    (state,) = node.membership.view.states
    assert (state.boot, state.ring, state.skew_s) == (7, "feed", 400.0)
    assert state.is_alive  # a wrong clock is reported, and nothing else


def test_a_greeting_of_a_member_that_is_not_known_as_it_is_now_is_news() -> None:
    node = Node()
    assert node.membership.news_from(hello("b")) is None  # not listed
    node.lists("a", "b")
    assert node.membership.news_from(hello("b")) == "b:9482"
    node.hears("b")
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
    node.hears("b")
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
    node.hears(hello("b", 200), at="x:1")
    node.hears(hello("b", 100), at="y:1")
    node.hears(hello("d", 100), at="z:1")
    assert node.left_out == [("b", "duplicate name"), ("d", "name")]
    assert (counts("b", 200), counts("b", 100), counts("b", 300)) == (True, False, True)
    assert (counts("d", 100), counts("a", 100), counts("a", 101)) == (False, False, False)
    node.hears(hello(replace(member("b"), cluster_id="c2"), 201), at="x:1")
    assert not counts("b", 201)


# -- whatever happens -----------------------------------------------------------------------------------------------

NAMES = "abcde"
events = st.one_of(
    st.tuples(st.just("list"), st.sets(st.sampled_from(NAMES)), st.booleans()),
    st.tuples(st.just("hello"), st.sampled_from(NAMES), st.sampled_from(["ready", "unready", "leaving", "stranger"])),
    st.tuples(st.just("fail"), st.sampled_from(NAMES), st.none()),
    st.tuples(st.just("swap"), st.sampled_from(NAMES), st.sampled_from(NAMES[1:])),
    st.tuples(st.just("pass"), st.sampled_from([1.0, 30.0, 61.0, 121.0]), st.none()),
)


def apply(node: Node, event: tuple[str, object, object]) -> None:
    match event:
        case ("list", set(names), bool(named)):
            node.lists(*[ListedMember(f"{name}:9482", name if named else "") for name in sorted(names)])
        case ("hello", str(name), str(how)):
            said = hello(name, ready=how != "unready", leaving=how == "leaving")
            if how == "stranger":
                said = replace(said, member=replace(said.member, cluster_id="c2"))
            node.hears(said)
        case ("fail", str(name), _):
            node.fails(name)
        case ("swap", str(name), str(other)):
            node.hears(hello(name), at=f"{other}:9482")
        case ("pass", float(seconds), _):
            node.passes(seconds)


@dataclass
class Process:
    """`number`: of the last forget that it sent. `lags`: it sends them to its own members alone."""

    name: str
    address: str
    boot: int
    cluster_id: str
    number: int = 0


processes = st.lists(
    st.builds(
        Process, st.sampled_from("abc"), st.sampled_from(["v:1", "x:1", "y:1", "z:1"]), st.integers(1, 200),
        st.sampled_from(["c1", "c1", "c2"]),
    ),
    min_size=1, max_size=5, unique_by=(lambda each: each.address, lambda each: each.boot),
)  # fmt: skip


@given(
    processes,
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["greeted", "greets", "writes", "silent"])), max_size=60),
)
def test_a_process_makes_a_node_doubt_its_versions_once_at_most(
    there: list[Process], acts: list[tuple[int, str]]
) -> None:
    """Whichever names and cluster ids are mixed up in a list. Processes of this node's cluster send each forget to it,
    others none."""
    node, forgets, gaps = Node(), ReceivedForgets(), 0
    node.lists(*(ListedMember(each.address) for each in there))
    for at, act in acts:
        each = there[at % len(there)]
        fits = each.cluster_id == "c1"
        said = Hello(Member(each.name, each.address, "z1", GIB, each.cluster_id), each.boot, "", each.number, WALL_S)
        if act == "silent":
            node.membership.unanswered(each.address, node.now)
        elif act == "writes":
            each.number += 1
            if fits and node.membership.counts(each.name, each.boot):
                gaps += forgets.received(each.name, each.boot, range(each.number, each.number + 1), node.now)
        elif act == "greeted" or fits:
            if act == "greeted":
                node.hears(said)
            elif each.name == "a":
                node.membership.met_namesake(said, node.now)
            if node.membership.counts(each.name, each.boot):
                gaps += forgets.reported(each.name, each.boot, each.number, node.now)
        node.now += 1
        gaps += forgets.passed(node.now)
        named = {left.name for left in node.membership.view.left_out if left.why is Why.DUPLICATE}
        assert named == set(node.membership.view.names_used_twice)
        assert all(len(at) > 1 for at in node.membership.view.names_used_twice.values())
    assert gaps <= len(there)


def namesake(address: str, boot: int) -> Hello:
    return hello(under(member("a"), address), boot)


def test_a_process_of_this_nodes_name_that_greets_it_is_said_once_with_its_address() -> None:
    """Members that know of a process that began later refuse this one, so that it hears of nobody."""
    node = Node()
    node.lists("a", "b")
    for _ in range(3):
        node.membership.met_namesake(namesake("10.0.0.9:1", 200), node.now)
        node.passes(5)
    (change,) = node.membership.changes()
    assert (change.event, change.name) == ("name used twice", "a")
    assert "10.0.0.9:1 and a:9482" in change.detail
    assert "--peer-name" in change.detail
    assert node.membership.view.names_used_twice == {"a": ["10.0.0.9:1", "a:9482"]}
    node.passes(31)
    assert node.membership.view.names_used_twice == {}, "it has its own name, or has ended"


def test_a_listed_process_of_this_nodes_name_is_left_out_once_whichever_side_greets_first() -> None:
    for turns in ("heard met", "met heard"):
        node = Node()
        node.lists("a", ListedMember("node-2.local:1"), ListedMember("x:1"))
        for turn in turns.split():
            for address, boot in (("10.0.0.2:1", 200), ("x:1", 300)):
                if turn == "met":
                    node.membership.met_namesake(namesake(address, boot), node.now)
                else:
                    listed_at = "node-2.local:1" if boot == 200 else address
                    node.hears(namesake(address, boot), at=listed_at)
        for _ in range(7):
            node.passes(5)
            node.membership.met_namesake(namesake("10.0.0.2:1", 200), node.now)
        assert node.left_out == [("a", "duplicate name")] * 2
        assert node.membership.view.names_used_twice == {"a": ["a:9482", "node-2.local:1", "x:1"]}


def test_this_process_and_the_one_before_it_at_its_address_are_no_namesakes() -> None:
    node = Node()
    node.membership.met_namesake(namesake("10.0.0.9:1", 100), node.now)
    node.membership.met_namesake(namesake("a:9482", 50), node.now)
    assert node.left_out == []


@given(st.lists(events, max_size=25))
def test_invariants_hold_after_any_events_and_all_nodes_agree_in_the_end(
    happened: list[tuple[str, object, object]],
) -> None:
    node = Node()
    for event in happened:
        apply(node, event)
        view = node.membership.view
        states = {each.member.name: each for each in view.states}
        assert "a" in node.ring
        assert set(node.acting) <= set(node.ring)
        assert set(node.acting) - {"a"} <= set(node.alive)
        assert {name for name, each in states.items() if each.is_alive} == set(node.alive)
        assert {name for name, each in states.items() if each.in_ring} == set(node.ring) - {"a"}
        for name in set(node.ring) - {"a"}:
            away_since = states[name].away_since
            assert away_since is None or node.now - away_since <= AWAY_S
            assert states[name].member.cluster_id == "c1"
        for ref in REFS[:5]:
            assert view.acting_owner(ref, 0) == next(
                each for each in view.ring.owners(ref, 0) if each.name in node.acting
            )
            previous = view.previous_owner(ref, 0)
            assert previous is None or (previous.name in node.alive and previous != view.acting_owner(ref, 0))
    # Once lists and hellos are good again, nothing of the past is left.
    for _ in range(2):
        node.lists("a", "b", "c")
        node.passes(61)
        for name in "abcde":
            node.fails(name)
        node.hears(hello("b", 300), hello("c", 300))
        node.passes(61)
        node.hears(hello("b", 300), hello("c", 300))
    assert (node.ring, node.acting, node.alive, node.left_out) == ("abc", "abc", "bc", [])
    assert node.membership.view.ring == Node().knows("abc").membership.view.ring
