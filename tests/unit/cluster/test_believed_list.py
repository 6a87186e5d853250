"""The list of members that is believed, and for how long one that lost most members is not."""

from __future__ import annotations

import pytest

from outrider.core.cluster.believed_list import DOUBT_S, BelievedList
from outrider.core.cluster.member import ListedMember


def entries(names: str) -> list[ListedMember]:
    return [ListedMember(f"10.0.0.{ord(name)}:9482", name) for name in names]


def believing(names: str, now: float = 0.0) -> BelievedList:
    believed = BelievedList()
    believed.listed(entries(names), now)
    return believed


def names_of(believed: BelievedList) -> str:
    return "".join(sorted(entry.name for entry in believed.entries))


def test_the_first_list_is_believed_even_if_it_is_empty() -> None:
    believed = believing("")
    assert (believed.has_come, believed.is_doubted, names_of(believed)) == (True, False, "")
    assert BelievedList().has_come is False


@pytest.mark.parametrize(("before", "after"), [("abcd", "ab"), ("ab", "b"), ("abcd", "abcx"), ("abc", "abcdefgh")])
def test_a_list_that_keeps_half_is_believed_at_once(before: str, after: str) -> None:
    believed = believing(before)
    believed.listed(entries(after), 1.0)
    assert not believed.is_doubted
    assert names_of(believed) == after


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [("abcd", "", "abcd"), ("abcd", "a", "abcd"), ("a", "", "a"), ("abcd", "ax", "abcdx"), ("abc", "xyz", "abcxyz")],
)
def test_a_list_that_lost_more_is_doubted_for_a_minute(before: str, after: str, shown: str) -> None:
    believed = believing(before)
    believed.listed(entries(after), 10.0)
    assert believed.is_doubted
    assert names_of(believed) == shown
    believed.passed(10.0 + DOUBT_S - 0.1)
    assert names_of(believed) == shown
    believed.passed(10.0 + DOUBT_S)
    assert not believed.is_doubted
    assert names_of(believed) == after


def test_a_list_that_says_so_again_prolongs_nothing() -> None:
    believed = believing("abcd")
    believed.listed(entries("a"), 10.0)
    believed.listed(entries(""), 60.0)
    assert names_of(believed) == "abcd"
    believed.listed(entries("d"), 10.0 + DOUBT_S)
    assert names_of(believed) == "d"


def test_a_list_that_is_whole_again_ends_the_doubt() -> None:
    believed = believing("abcd")
    believed.listed(entries(""), 10.0)
    believed.listed(entries("abc"), 20.0)
    assert not believed.is_doubted
    believed.passed(10.0 + DOUBT_S)
    assert names_of(believed) == "abc"


def test_the_list_of_an_earlier_process_is_believed_against_an_empty_one() -> None:
    believed = BelievedList(entries("abc"))
    assert believed.has_come is False
    believed.listed([], 0.0)
    assert names_of(believed) == "abc"


def test_a_member_under_another_address_is_not_lost() -> None:
    believed = believing("abc")
    moved = [ListedMember(f"10.9.9.{number}:9482", name) for number, name in enumerate("abc")]
    believed.listed(moved, 1.0)
    assert not believed.is_doubted
    assert list(believed.entries) == moved


def test_members_without_names_are_distinguished_by_addresses() -> None:
    believed = BelievedList()
    believed.listed([ListedMember(f"h{number}:1") for number in range(4)], 0.0)
    believed.listed([ListedMember("h0:1"), ListedMember("h9:1")], 1.0)
    assert [entry.address for entry in believed.entries] == ["h0:1", "h9:1", "h1:1", "h2:1", "h3:1"]


def test_an_address_counts_once_and_with_its_name() -> None:
    believed = BelievedList()
    believed.listed([ListedMember("h:1"), ListedMember("h:1", "a", "zone"), ListedMember("h:1", "b")], 0.0)
    assert list(believed.entries) == [ListedMember("h:1", "a", "zone")]


def test_an_entry_is_found_by_address_or_by_name() -> None:
    believed = BelievedList()
    believed.listed([ListedMember("h1:1"), ListedMember("h2:1", "b")], 0.0)
    assert believed.entry_of("h1:1", "anybody") == ListedMember("h1:1")
    assert believed.entry_of("h2:1", "b") == ListedMember("h2:1", "b")
    assert believed.entry_of("h7:1", "b") == ListedMember("h2:1", "b")
    assert believed.entry_of("h2:1", "c") is None
    assert believed.at("h2:1") == ListedMember("h2:1", "b")
    assert believed.at("h7:1") is None
