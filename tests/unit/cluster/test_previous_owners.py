"""The member that had a block before its owner changed is known for an hour."""

from __future__ import annotations

from outrider.core.cluster.member import ListedMember
from outrider.core.cluster.membership import PREVIOUS_S
from tests.unit.cluster.nodes import REFS, Node, hello, member, under


def test_the_previous_owner_of_a_block_is_known_for_an_hour() -> None:
    node = Node().knows("ab")
    node.passes(PREVIOUS_S)  # the hour after its own start is over
    before = {ref: node.membership.view.acting_owner(ref, 0) for ref in REFS}
    node.lists("a", "b", "c")
    node.receives("c")
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
    node.receives(hello("b", 100, leaving=True), at="new:1")
    node.membership.unanswered("b:9482", node.now)
    node.receives(hello("b", 100, leaving=True), at="new:1")
    found = {node.membership.view.previous_owner(ref, 0) for ref in REFS}
    assert found == {None, under(member("b"), "new:1")}


def test_a_ring_that_comes_and_goes_is_remembered_once() -> None:
    node = Node().knows("abcd")
    node.passes(PREVIOUS_S)
    for _ in range(20):
        node.fails("b")
        node.receives("b")
    assert [str(ring) for ring in node.membership.view.previous] == ["Ring(a, c, d)"]


def test_few_previous_rings_are_remembered() -> None:
    node = Node().knows("abcdefgh")
    node.passes(PREVIOUS_S)
    for gone in "bcdefgh":
        node.fails(gone)
    for back in "bcdefgh":
        node.receives(back)
    assert len(node.membership.view.previous) == 8


def test_a_ring_keeps_its_memo_while_its_members_stay() -> None:
    node = Node().knows("abc")
    ring, acting, previous = node.membership.view.ring, node.membership.view.acting, node.membership.view.previous
    node.passes(1)
    node.receives("b", "c")
    view = node.membership.view
    assert view.ring is ring
    assert view.acting is acting
    assert view.previous[-1] is previous[-1]


def test_a_block_of_an_owner_that_is_away_is_not_near() -> None:
    node = Node().knows("ab")
    node.fails("b")
    assert all(node.membership.view.is_mine(ref, 0) for ref in REFS)
    node.receives("b")
    mine = [node.membership.view.is_mine(ref, 0) for ref in REFS]
    assert True in mine
    assert False in mine
