"""Keys by the step of their next use, against a list that is sorted each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.ranks import Ranks

KEYS, STEPS = st.integers(0, 9), st.integers(-2, 4)


@given(st.lists(st.tuples(KEYS, st.none() | STEPS)))
def test_the_last_step_comes_first_and_in_it_what_was_put_there_last(moves: list[tuple[int, int | None]]) -> None:
    ranks = Ranks()
    where: dict[int, tuple[int, int]] = {}
    for number, (key, step) in enumerate(moves):
        if key in where:
            ranks.discard(key, where.pop(key)[0])
        if step is not None:
            ranks.put(key, step)
            where[key] = step, number
    assert list(reversed(ranks)) == sorted(where, key=lambda key: where[key], reverse=True)


def test_what_is_not_there_is_no_matter() -> None:
    ranks = Ranks()
    ranks.put(1, 5)
    ranks.discard(1, 6)
    ranks.discard(2, 5)
    assert list(reversed(ranks)) == [1]
