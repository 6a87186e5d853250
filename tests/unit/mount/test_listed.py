"""A LIST and the object itself tell of its version: which of them is believed, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.mount.listed import FileVersion, ListTrust, ObjectFacts, SettleVerdict, verdict

SIZES = st.sampled_from([-1, 0, 1, 100, 200])
TOLD = st.builds(ObjectFacts, SIZES, st.sampled_from(["", "a", "b", "a-2"]), st.sampled_from([0, 1000, 1001]))
BY_HEAD = TOLD.filter(lambda told: told.size >= 0)


@given(TOLD, BY_HEAD, st.booleans())
def test_a_file_is_only_kept_as_it_is_where_nothing_contradicts_it(
    known: ObjectFacts, told: ObjectFacts, is_settled: bool
) -> None:
    found = verdict(known, told, is_settled=is_settled)
    contradicts = (
        (known.size >= 0 and known.size != told.size)
        or (known.etag and told.etag and known.etag != told.etag)
        or (known.seconds != told.seconds and not (known.etag and told.etag and 0 in (known.seconds, told.seconds)))
    )
    assert (found is SettleVerdict.SAME) is not contradicts
    if found is SettleVerdict.MISSTATED:
        # Only what no byte was read by may become another version in place, and no date says that it was put again.
        assert not is_settled
        assert known.seconds == told.seconds or 0 in (known.seconds, told.seconds)


@given(TOLD, BY_HEAD)
def test_a_version_that_the_object_told_of_is_settled(known: ObjectFacts, told: ObjectFacts) -> None:
    """Else each read would fail, for ever."""
    assert verdict(told, told, is_settled=True) is SettleVerdict.SAME
    assert verdict(known, told, is_settled=True) in (SettleVerdict.SAME, SettleVerdict.CHANGED)


@given(TOLD, TOLD, st.booleans())
def test_a_reply_of_another_version_is_never_taken(known: ObjectFacts, reply: ObjectFacts, is_settled: bool) -> None:
    taken = FileVersion(known.size, known.etag, is_settled, known.seconds).may_be(reply)
    contradicts = (
        (reply.size >= 0 and reply.size != known.size)
        or (reply.etag and known.etag and reply.etag != known.etag)
        or (reply.seconds and known.seconds and reply.seconds != known.seconds)
    )
    proves = reply.size == known.size >= 0 and reply.etag == known.etag != ""
    assert taken is (not contradicts and (proves or is_settled))


@given(st.lists(TOLD), TOLD)
def test_lists_are_believed_of_kinds_of_objects_that_were_as_listed(
    confirmed: list[ObjectFacts], told: ObjectFacts
) -> None:
    trust = ListTrust()
    for each in confirmed:
        trust.confirm(each)
    proofs = [each for each in confirmed if each.size > 0 and each.etag and ("-" in each.etag) == ("-" in told.etag)]
    like = [each for each in proofs if each.size.bit_length() == told.size.bit_length()]
    if trust.believes(told):
        assert told.size > 0
        assert told.etag
        assert len(like) >= 4
    trust.lose()
    assert not trust.believes(told)


def test_lists_without_a_size_or_an_etag_are_never_believed() -> None:
    trust = ListTrust()
    for told, believed in (
        (ObjectFacts(0, "a", 1), False),
        (ObjectFacts(100, "", 1), False),
        (ObjectFacts(100, "a", 1), True),
    ):
        for _ in range(10):
            trust.confirm(told)
        assert trust.believes(told) is believed
