"""Any events in any order: the invariants of membership, and processes of one name."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cluster.forget_numbers import ReceivedForgets
from outrider.core.cluster.member import ListedMember, Member
from outrider.core.cluster.membership import AWAY_S
from outrider.core.cluster.messages import Hello
from outrider.core.cluster.view import Why
from tests.unit.cluster.nodes import GIB, REFS, WALL_S, Node, hello, member, under

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
            node.receives(said)
        case ("fail", str(name), _):
            node.fails(name)
        case ("swap", str(name), str(other)):
            node.receives(hello(name), at=f"{other}:9482")
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
                node.receives(said)
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
    """Members that know of a process that began later refuse this one, so that it learns of nobody."""
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
    for turns in ("received met", "met received"):
        node = Node()
        node.lists("a", ListedMember("node-2.local:1"), ListedMember("x:1"))
        for turn in turns.split():
            for address, boot in (("10.0.0.2:1", 200), ("x:1", 300)):
                if turn == "met":
                    node.membership.met_namesake(namesake(address, boot), node.now)
                else:
                    listed_at = "node-2.local:1" if boot == 200 else address
                    node.receives(namesake(address, boot), at=listed_at)
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
        node.receives(hello("b", 300), hello("c", 300))
        node.passes(61)
        node.receives(hello("b", 300), hello("c", 300))
    assert (node.ring, node.acting, node.alive, node.left_out) == ("abc", "abc", "bc", [])
    assert node.membership.view.ring == Node().knows("abc").membership.view.ring
