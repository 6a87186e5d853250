"""Numbered names: a binary search by a few HEADs finds which of them exist."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from math import log2
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.ahead.numbered_names_search import NumberedNames, NumberedRange, numbering_of


def probed(
    numbering: NumberedNames, there: Set[int] | range, width: int | None = None
) -> tuple[NumberedRange | None, list[list[str]]]:
    """The range that is found if the numbers in `there` exist, and the probed names, round by round."""
    true = replace(numbering, width=numbering.width if width is None else width)

    def is_there(name: str) -> bool:
        number = int(name.removeprefix(true.head).removesuffix(true.tail))
        return number in there and name == true.name(number)

    rounds = []
    probe = numbering.probe()
    try:
        asked = next(probe)
        while True:
            rounds.append(asked)
            asked = probe.send([is_there(name) for name in asked])
    except StopIteration as found:
        return found.value, rounds


@pytest.mark.parametrize(("keys", "head", "width", "tail", "seen"), [
    (["train-000012.tar", "train-000003.tar"], "train-", 6, ".tar", (3, 12)),
    (["a/8.bin", "a/12.bin", "a/100.bin"], "a/", 1, ".bin", (8, 12, 100)),
    (["a/0.bin", "a/12.bin"], "a/", 1, ".bin", (0, 12)),
    (["s-00-of-10.tar", "s-09-of-10.tar"], "s-", 2, "-of-10.tar", (0, 9)),
    (["v2/x-998", "v2/x-1002"], "v2/x-", 1, "", (998, 1002)),
    (["x-098.gz", "x-1002.gz"], "x-", 3, ".gz", (98, 1002)),
])  # fmt: skip
def test_names_that_differ_in_one_number_are_numbered(
    keys: list[str], head: str, width: int, tail: str, seen: tuple[int, ...]
) -> None:
    numbering = numbering_of(keys)
    assert numbering is not None
    assert replace(numbering, padded=0) == NumberedNames(head, width, tail, seen)
    assert [NumberedNames(head, width, tail, seen).name(number) for number in seen] == sorted(
        keys, key=lambda key: seen.index(int(key.removeprefix(head).removesuffix(tail)))
    )


@pytest.mark.parametrize("keys", [
    [],
    ["train-000012.tar"],
    ["train-000012.tar"] * 3,
    ["a-000001.tar", "b-000002.tar"],
    ["n01440764_10026.JPEG", "n01440765_10027.JPEG"],
    ["x-01.tar", "x-001.tar"],
    ["x-01.tar", "x-2.tar"],
    ["0af3c29be1d04455aa17.bin", "1af3c29be1d04455aa18.bin"],
    ["x-1.tar", "x-1-2.tar"],
    ["x-1" + 15 * "0", "x-2" + 15 * "0"],
    ["x-٠١.tar", "x-٠٢.tar"],
])  # fmt: skip
def test_other_names_are_not_numbered(keys: list[str]) -> None:
    assert numbering_of(keys) is None


@given(
    st.integers(0, 3) | st.integers(0, 50_000), st.integers(4, 100_000), st.integers(1, 8),
    st.sampled_from(["", ".tar"]), st.integers(),
)  # fmt: skip
def test_the_whole_range_is_found_with_few_probes(first: int, count: int, width: int, tail: str, seed: int) -> None:
    there = range(first, first + count)
    seen = tuple(sorted(Random(seed).sample(there, 3)))
    numbering = NumberedNames("x-", width, tail, seen)
    found, rounds = probed(numbering, there)
    assert found == NumberedRange(numbering, there)
    assert len(rounds) <= 4 + log2(count) / 2 + log2(first + count) / 2
    asked = [name for names in rounds for name in names]
    assert len(asked) <= 3 * len(rounds) + 32
    assert not set(asked) & set(map(numbering.name, seen)), "a name that is known to exist was probed"
    few = range(first, first + min(count, 3000))
    assert list(NumberedRange(numbering, few).names()) == sorted(map(numbering.name, few)), (
        "the names are sorted as in a LIST"
    )


@pytest.mark.parametrize("gaps", [0.8, 0.5, 0.25])
def test_names_with_many_gaps_are_not_taken_for_a_range(gaps: float) -> None:
    random, taken = Random(7), 0
    for _ in range(100):
        there = {number for number in range(5000) if random.random() >= gaps}
        seen = tuple(sorted(random.sample(sorted(there), 3)))
        taken += probed(NumberedNames("x", 6, "", seen), there)[0] is not None
    assert taken <= 3, "16 samples miss a quarter of gaps once in a hundred times"


def test_nothing_is_found_if_all_names_are_known_or_too_many_exist() -> None:
    assert probed(NumberedNames("x", 6, "", (4, 5, 6)), range(4, 7))[0] is None
    endless, rounds = probed(NumberedNames("x", 6, "", (4, 5, 6)), range(10**15))
    assert endless is None
    assert len(rounds) < 4
    for seen in ((5, 10**14), (5, 400_000, 900_000)):
        assert probed(NumberedNames("x", 1, "", seen), range(1_900_000))[0] is None


@pytest.mark.parametrize("first", [0, 1, 100])
@pytest.mark.parametrize("width", [1, 4])
def test_padding_is_found_although_no_read_name_shows_it(first: int, width: int) -> None:
    numbering = numbering_of(["x-1300.bin", "x-2010.bin", "x-1005.bin"])
    assert numbering is not None
    found, _ = probed(numbering, range(first, 2500), width)
    seen_as = replace(numbering, width=4, padded=0) if width == 4 and first < 2 else numbering
    assert found == NumberedRange(seen_as, range(first if first < 2 or width == 1 else 1000, 2500))


def test_a_million_names_come_one_after_the_other() -> None:
    names = NumberedRange(NumberedNames("x", 1, ".tar", (4, 5)), range(10**15)).names()
    assert next(names) == "x0.tar"
