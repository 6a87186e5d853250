"""The number of copies of a warm-up: as clients write it, and which members keep them in which turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.maintenance.copies import in_words, parse_copies, too_many
from outrider.core.model import ObjectRef
from tests.unit.cluster.nodes import Node, member

REFS = [ObjectRef("b", str(number)) for number in range(60)]


@pytest.mark.parametrize(("text", "copies"), [("all", 0), ("1", 1), ("12", 12), ("999999", 999_999)])
def test_copies_are_all_or_a_number(text: str, copies: int) -> None:
    assert parse_copies(text) == copies
    assert in_words(copies) == text


@pytest.mark.parametrize("text", ["", "0", "-1", "+1", "1.5", "ALL", "٣", "1000000", "9" * 5000])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither all nor a number"):
        parse_copies(text)


@given(st.integers(0, 20), st.integers(1, 20))
def test_only_more_copies_than_members_are_said(copies: int, members: int) -> None:
    assert (too_many(copies, members) is not None) == (copies > members)


@pytest.mark.parametrize("away", ["", "c"])
def test_each_block_is_kept_so_many_times_by_members_that_are_there(away: str) -> None:
    nodes = {name: Node(me=None if name == "a" else member(name)).knows("abcd") for name in "abcd"}
    for name, node in nodes.items():
        if away and name != away:
            node.fails(away)
    views = {name: node.membership.view for name, node in nodes.items()}
    for copies in (1, 2, 3, 0):
        for ref in REFS:
            keep = {name for name, view in views.items() if name != away and view.keeps(ref, 0, copies)}
            first = {each.name for each in views["a"].ring.owners(ref, 0)[: copies or None]}
            assert keep >= first - {away}
            assert len(keep) == (min(copies, 4 - bool(away)) if copies else 4 - bool(away))
            assert all(view.keeps(ref, 0, 1) == view.is_mine(ref, 0) for view in views.values())


def test_members_ask_for_the_same_block_in_different_turns() -> None:
    views = [Node(me=None if name == "a" else member(name)).knows("abcd").membership.view for name in "abcd"]
    for ref in REFS:
        turns = [view.turn(ref, 0) for view in views]
        assert sorted(turns) == [0, 1, 2, 3]
        assert views[turns.index(0)].is_mine(ref, 0)
