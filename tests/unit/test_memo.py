"""The bounded memo: which entries it holds, and which one it drops when it is full."""

from __future__ import annotations

import sys
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.memo import Memo


def test_a_full_memo_drops_its_oldest_entry() -> None:
    memo: Memo[str, int] = Memo(2)
    memo.put("a", 1)
    memo.put("b", 2)
    assert memo.get("a") == 1  # a lookup does not make it younger
    memo.put("c", 3)
    assert [memo.get(key) for key in "abc"] == [None, 2, 3]


def test_a_cleared_memo_is_empty_and_usable() -> None:
    memo: Memo[str, int] = Memo(2)
    memo.put("a", 1)
    memo.clear()
    assert not memo
    memo.put("b", 2)
    assert "b" in memo
    assert "a" not in memo


def test_a_memo_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="0 entries"):
        Memo(0)


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 9), st.integers())))
def test_a_memo_holds_the_last_new_keys_with_their_last_values(capacity: int, puts: list[tuple[int, int]]) -> None:
    memo: Memo[int, int] = Memo(capacity)
    model: list[tuple[int, int]] = []
    for key, value in puts:
        memo.put(key, value)
        if any(known == key for known, _ in model):
            model = [(known, value if known == key else old) for known, old in model]
        else:
            model = [*model, (key, value)][-capacity:]
        assert len(memo) == len(model)
        assert all(memo.get(known) == old for known, old in model)


def test_threads_that_put_at_once_break_nothing() -> None:
    memo: Memo[int, int] = Memo(4)
    wrong: list[object] = []

    def put_many(first: int) -> None:
        try:
            for number in range(first, first + 4000):
                memo.put(number, number)
                if memo.get(number) not in (None, number):
                    wrong.append(number)
        except Exception as error:  # noqa: BLE001 - the test reports it
            wrong.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [Thread(target=put_many, args=(10_000 * number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong
    memo.put(-1, -1)
    assert len(memo) <= 4
