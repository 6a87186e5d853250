"""The messages about loans: what one side packs the other reads, and other bytes are refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cache import loan_messages
from outrider.core.cache.loan_messages import BadMessage, Loan, LoanRead, LoanTerms
from outrider.http.control.lender import may_ask

NUMBERS = st.integers(0, 2**32 - 1)
BYTES = st.integers(0, 2**63)
KEYS = st.binary(max_size=1024).map(lambda key: key.decode("utf-8", "surrogateescape"))
# Whole milliseconds, which the form keeps.
SECONDS = st.integers(0, 4_000).map(lambda thousandths: thousandths / 1000)


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, int]:
    start, stop = sorted(draw(st.lists(BYTES, min_size=2, max_size=2, unique=True)))
    return start, stop


@st.composite
def loan_reads(draw: st.DrawFn) -> LoanRead:
    start, stop = draw(runs())
    return LoanRead(draw(NUMBERS), draw(KEYS), start, stop, draw(SECONDS), draw(SECONDS), draw(SECONDS))


@given(st.lists(loan_reads(), max_size=5))
def test_reads_come_as_they_were_sent(reads: list[LoanRead]) -> None:
    assert list(loan_messages.parse_reads(loan_messages.pack_reads(reads))) == reads


@given(NUMBERS, BYTES, st.floats(0, allow_nan=False), runs(), BYTES, BYTES, KEYS)
def test_a_loan_comes_as_it_was_sent(
    number: int, changes: int, fresh_s: float, run: tuple[int, int], offset: int, seconds: int, etag: str
) -> None:
    loan = Loan(number, changes, fresh_s, *run, offset, run[1], seconds, etag)
    assert loan_messages.parse_answer(loan_messages.pack_loan(loan)) == (number, loan)
    assert loan_messages.parse_answer(loan_messages.pack_refusal(number)) == (number, None)


def test_the_greeting_and_the_terms_come_as_they_were_sent() -> None:
    token, terms = "0123456789abcdef" * 2, LoanTerms(8 * 2**20, 64)
    assert loan_messages.parse_greeting(loan_messages.pack_greeting(token, "pets")) == (token, "pets")
    assert loan_messages.parse_terms(loan_messages.pack_terms(terms)) == terms


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_refused(packet: bytes) -> None:
    for parse in (loan_messages.parse_greeting, loan_messages.parse_terms, loan_messages.parse_answer):
        with suppress(BadMessage):
            parse(packet)
    with suppress(BadMessage):
        assert all(read.start < read.stop for read in loan_messages.parse_reads(packet))


@pytest.mark.parametrize(("uid", "own_uid", "may"), [(7, 7, True), (0, 7, True), (8, 7, False), (7, 0, False)])
def test_the_own_user_and_root_may_ask(uid: int, own_uid: int, may: bool) -> None:
    assert may_ask(uid, own_uid) is may
