"""A LIST and the object itself state its version: which of them is believed, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.mount.listed import FileVersion, ListTrust, ObjectFacts, SettleVerdict, verdict

SIZES = st.sampled_from([-1, 0, 1, 100, 200])
FACTS = st.builds(ObjectFacts, SIZES, st.sampled_from(["", "a", "b", "a-2"]), st.sampled_from([0, 1000, 1001]))
BY_HEAD = FACTS.filter(lambda found: found.size >= 0)


@given(FACTS, BY_HEAD, st.booleans())
def test_a_file_is_only_kept_as_it_is_where_nothing_contradicts_it(
    known: ObjectFacts, found: ObjectFacts, is_settled: bool
) -> None:
    judged = verdict(known, found, is_settled=is_settled)
    contradicts = (
        (known.size >= 0 and known.size != found.size)
        or (known.etag and found.etag and known.etag != found.etag)
        or (known.seconds != found.seconds and not (known.etag and found.etag and 0 in (known.seconds, found.seconds)))
    )
    assert (judged is SettleVerdict.SAME) is not contradicts
    if judged is SettleVerdict.MISSTATED:
        # Only what no byte was read by may become another version in place, and no date says that it was put again.
        assert not is_settled
        assert known.seconds == found.seconds or 0 in (known.seconds, found.seconds)


@given(FACTS, BY_HEAD)
def test_a_version_that_the_object_stated_is_settled(known: ObjectFacts, found: ObjectFacts) -> None:
    """Else each read would fail, for ever."""
    assert verdict(found, found, is_settled=True) is SettleVerdict.SAME
    assert verdict(known, found, is_settled=True) in (SettleVerdict.SAME, SettleVerdict.CHANGED)


@given(FACTS, FACTS, st.booleans())
def test_a_reply_of_another_version_is_never_taken(known: ObjectFacts, reply: ObjectFacts, is_settled: bool) -> None:
    taken = FileVersion(known.size, known.etag, is_settled, known.seconds).may_be(reply)
    contradicts = (
        (reply.size >= 0 and reply.size != known.size)
        or (reply.etag and known.etag and reply.etag != known.etag)
        or (reply.seconds and known.seconds and reply.seconds != known.seconds)
    )
    proves = reply.size == known.size >= 0 and reply.etag == known.etag != ""
    assert taken is (not contradicts and (proves or is_settled))


@given(st.lists(FACTS), FACTS)
def test_lists_are_believed_of_kinds_of_objects_that_were_as_listed(
    confirmed: list[ObjectFacts], listed: ObjectFacts
) -> None:
    trust = ListTrust()
    for each in confirmed:
        trust.confirm(each)
    proofs = [each for each in confirmed if each.size > 0 and each.etag and ("-" in each.etag) == ("-" in listed.etag)]
    like = [each for each in proofs if each.size.bit_length() == listed.size.bit_length()]
    if trust.believes(listed):
        assert listed.size > 0
        assert listed.etag
        assert len(like) >= 4
    trust.lose()
    assert not trust.believes(listed)


def test_lists_without_a_size_or_an_etag_are_never_believed() -> None:
    trust = ListTrust()
    for listed, believed in (
        (ObjectFacts(0, "a", 1), False),
        (ObjectFacts(100, "", 1), False),
        (ObjectFacts(100, "a", 1), True),
    ):
        for _ in range(10):
            trust.confirm(listed)
        assert trust.believes(listed) is believed
