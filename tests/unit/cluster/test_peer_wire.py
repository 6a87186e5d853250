"""Reads between members, and their answers: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cluster.peer_messages import NOT_STATED, Confirmed, PeerRead, ReadClass, Sending
from outrider.core.cluster.peer_wire import (
    DIGEST,
    FIELD_BYTES_MAX,
    FROM,
    KNOWN,
    PEER,
    SENDS,
    SEQUENCE,
    AnswerHead,
    Requester,
    answer_headers,
    parse_answer,
    parse_read,
    parse_requester,
    read_head,
    sequence_of,
)
from outrider.core.cluster.wire_forms import WireError
from outrider.core.model import Extent, Headers, ObjectRef, ObjectVersion

ASKER = Requester("edge-1.local", "aa11", "bb22")
REF = ObjectRef("bucket", "key")

# Texts as they come from a wire: UTF-8, and bytes that are none as surrogate escapes.
from_wire = st.binary(min_size=1, max_size=60).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
refs = st.builds(ObjectRef, from_wire.filter(lambda name: "/" not in name), from_wire)
values = from_wire.filter(lambda value: not set(value) & set("\0\r\n"))
names = st.from_regex(r"[a-z0-9!#$%&'*+.^_`|~-]{1,30}", fullmatch=True)
headers = st.lists(st.tuples(names, values), max_size=12).map(tuple)


def etag_of(raw: bytes) -> str:
    odd = bytes(byte for byte in raw if byte > 32 and byte not in (34, 127))
    return '"' + odd.decode("utf-8", "surrogateescape") + 'x"'


etags = st.binary(min_size=1, max_size=40).map(etag_of)
sizes = st.integers(0, 2**53)
ages = st.floats(0, 1e9)


@st.composite
def reads(draw: st.DrawFn) -> PeerRead:
    ref = draw(refs)
    size = draw(sizes)
    version = ObjectVersion(ref, draw(etags), size, draw(headers), draw(st.booleans()))
    known, extent = None, None
    if size and draw(st.booleans()):
        start = draw(st.integers(0, size - 1))
        extent = Extent(start, draw(st.integers(start + 1, size)))
        known = draw(st.none() | st.just(Confirmed(version, draw(ages), draw(st.booleans()))))
    return PeerRead(
        ref, extent, draw(st.integers(0, 2**40)), known, draw(st.sampled_from(ReadClass)),
        only_if_cached=draw(st.booleans()), whole_headers=draw(st.booleans()),
    )  # fmt: skip


@given(reads())
def test_a_read_comes_as_it_was_sent(read: PeerRead) -> None:
    head = read_head(read, ASKER)
    assert head.path.isascii()
    assert all(value.isascii() and value.isprintable() for value in head.headers.values())
    assert parse_read(head.method, head.path, head.headers) == read
    assert parse_requester(head.headers) == ASKER


@given(reads(), st.data())
def test_an_answer_comes_as_it_was_sent(read: PeerRead, data: st.DataObject) -> None:
    if read.known is None:
        other = ObjectVersion(
            read.ref, data.draw(etags), data.draw(sizes), data.draw(headers), data.draw(st.booleans())
        )
        start = 0 if read.extent is None else read.extent.start
        stop = 0 if read.extent is None else min(read.extent.stop, other.size)
        extent = Extent(start, stop) if start < stop else None
        confirmed = Confirmed(other, data.draw(ages), data.draw(st.booleans()))
    else:
        extent = read.extent
        confirmed = replace(read.known, age_s=data.draw(ages), is_settled=data.draw(st.booleans()))
    digest = data.draw(st.sampled_from(("", "xxh3:0123456789abcdef"))) if extent is not None else ""
    status = 206 if extent is not None else 200
    sending = Sending(data.draw(sizes), data.draw(st.integers(0, 1000))) if extent is not None else NOT_STATED
    sent = AnswerHead(confirmed, extent, digest, sending)
    fields = answer_headers(read, sent, "owner")
    assert parse_answer(read, status, fields, 0 if extent is None else extent.length, "owner") == sent


# -- what does not come as it was sent ------------------------------------------------------------------------------


def many_headers() -> Headers:
    """2 KiB of user metadata, in as many headers as that can be."""
    return tuple((f"x-amz-meta-{index:x}", "") for index in range(700))


def test_all_the_metadata_that_s3_allows_is_carried() -> None:
    for pairs in (many_headers(), (("x-amz-meta-a", "\udcff" * 2048), ("content-disposition", "ü" * 512))):
        read = PeerRead(REF, Extent(0, 1), 0, Confirmed(ObjectVersion(REF, '"e"', 1, pairs), 0.0))
        head = read_head(read, ASKER)
        assert len(head.headers[KNOWN]) < FIELD_BYTES_MAX / 2
        assert parse_read(head.method, head.path, head.headers) == read


def test_a_version_with_more_headers_than_fit_is_not_sent() -> None:
    version = ObjectVersion(REF, '"e"', 1, (("x-amz-meta-a", "v" * FIELD_BYTES_MAX),))
    with pytest.raises(WireError):
        read_head(PeerRead(REF, Extent(0, 1), 0, Confirmed(version, 0.0)), ASKER)
    with pytest.raises(WireError):
        answer_headers(PeerRead(REF, None), AnswerHead(Confirmed(version, 0.0), None, ""), "owner")


def test_fields_of_a_later_version_are_ignored() -> None:
    head = read_head(PeerRead(REF, Extent(0, 1), 0, Confirmed(ObjectVersion(REF, '"e"', 1), 0.0)), ASKER)
    later = {**head.headers, PEER: head.headers[PEER] + ";new=1", KNOWN: known_value(new=[1])}
    assert parse_read(head.method, head.path, later).known == Confirmed(ObjectVersion(REF, '"e"', 1), 0.0)


# -- garbage ----------------------------------------------------------------------------------------------------------


def known_value(**changes: object) -> str:
    known = {"etag": '"e"', "size": 1, "age": 0, "settled": False, "whole": False, "headers": []} | changes
    return b64encode(json.dumps(known).encode()).decode()


GOOD = "v=1;from=edge;ring=r;cluster=c;hops=1;class=demand;only-if-here=0;checksums=0;block=0"
BAD_PEER = [
    "", ";", "v", GOOD + ";v=1", GOOD + ";", GOOD.replace("v=1", "v=-1"),
    GOOD.replace("v=1", "v=١"), GOOD.replace("edge", ""), GOOD.replace("edge", "a b"), GOOD.replace("edge", "é"),
    GOOD.replace("edge", "a" * 254), GOOD.replace("hops=1", "hops=-1"), GOOD.replace("hops=1", "hops=" + "9" * 20),
    GOOD.replace("ring=r", "ring=" + "r" * 200), GOOD.replace("demand", "now"), GOOD.replace("block=0", "block=x"),
    GOOD.replace("only-if-here=0", "only-if-here=2"), GOOD.replace(";checksums=0", ""),
]  # fmt: skip
BAD_FIELDS: dict[str, tuple[object, ...]] = {
    "etag": ("e", 'W/"e"', '"a b"', '""', 1, None, '"\ud800"'),
    "size": (-1, 1.0, True, 2**63, "1", None),
    "age": (-1, float("nan"), float("inf"), True, "1", None, 1e11),
    "settled": (0, None),
    "whole": ("", None),
    "headers": (
        None, {}, [1], [["a"]], [["a", "b", "c"]], [["A", "b"]], [["a b", "c"]], [["", "c"]], [["a", "b\r\nc: d"]],
        [["a", "b\0"]], [["a", 1]], [["a", "\ud800"]], [["a", ""]] * 1025,
    ),
}  # fmt: skip
BAD_KNOWN = [
    "", "!", "e30=", "e30", "é", b64encode(b"[]").decode(), b64encode(b"[" * 20_000).decode(),
    b64encode(b"\xff").decode(), "A" * (FIELD_BYTES_MAX + 4),
    *(known_value(**{field: value}) for field, bad in BAD_FIELDS.items() for value in bad),
]  # fmt: skip


@pytest.mark.parametrize("value", BAD_PEER)
def test_a_malformed_account_of_the_asker_is_refused(value: str) -> None:
    def parse(value: str) -> None:
        parse_requester({PEER: value})
        parse_read("HEAD", "/b/k", {PEER: value})

    parse(GOOD)
    with pytest.raises(WireError):
        parse(value)


@pytest.mark.parametrize("value", BAD_KNOWN)
def test_a_malformed_version_is_refused(value: str) -> None:
    asked = {PEER: GOOD, "range": "bytes=0-0"}
    assert parse_read("GET", "/b/k", {**asked, KNOWN: known_value()}).known is not None
    with pytest.raises(WireError):
        parse_read("GET", "/b/k", {**asked, KNOWN: value})
    with pytest.raises(WireError):
        parse_answer(PeerRead(REF, None), 200, ((FROM, "owner"), (KNOWN, value)), 0, "owner")


@pytest.mark.parametrize("value", ["", "1", "1/", "/1", "1/2/3", "-1/1", "1.5/1", "a/1", f"{2**63}/1"])
def test_a_malformed_account_of_what_is_sent_is_refused(value: str) -> None:
    read = PeerRead(REF, Extent(0, 1))
    fields = ((FROM, "owner"), (KNOWN, known_value()), ("content-range", "bytes 0-0/1"))
    assert parse_answer(read, 206, (*fields, (SENDS, "7/2")), 1, "owner").sending == (7, 2)
    assert parse_answer(read, 206, fields, 1, "owner").sending == NOT_STATED, "a member before 0.3"
    with pytest.raises(WireError):
        parse_answer(read, 206, (*fields, (SENDS, value)), 1, "owner")


@pytest.mark.parametrize(
    "path",
    ["", "/", "//k", "/b", "/b/", "b/k", "/b/%", "/b/%2f%2", "/b/ü", "/b/a b", "/b/%7e", "/%C3/", "/b/" + "k" * 1025],
)
def test_a_malformed_path_is_refused(path: str) -> None:
    with pytest.raises(WireError):
        parse_read("HEAD", path, {PEER: GOOD})


@pytest.mark.parametrize(
    "value",
    ["bytes=1-0", "bytes=0-", "bytes=-1", "bytes=0-1,3-4", "bytes=0-1 ", "bytes=0-" + "9" * 19, "bytes=١-٢"],
)
def test_a_malformed_range_is_refused(value: str) -> None:
    with pytest.raises(WireError):
        parse_read("GET", "/b/k", {PEER: GOOD, "range": value})


def test_a_range_past_the_known_end_is_refused() -> None:
    with pytest.raises(WireError):
        parse_read("GET", "/b/k", {PEER: GOOD, "range": "bytes=0-1", KNOWN: known_value(size=1)})


@pytest.mark.parametrize(("method", "asked"), [("GET", {}), ("HEAD", {"range": "bytes=0-1"}), ("PUT", {}), ("get", {})])
def test_a_method_that_does_not_go_with_the_range_is_refused(method: str, asked: dict[str, str]) -> None:
    with pytest.raises(WireError):
        parse_read(method, "/b/k", {PEER: GOOD, **asked})


@pytest.mark.parametrize("value", ["", "1", "1.", ".1", "1.2.3", "-1.2", "1.x", "1." + "9" * 20])
def test_a_malformed_sequence_number_is_refused(value: str) -> None:
    assert sequence_of({SEQUENCE: "12.345"}) == (12, 345)
    with pytest.raises(WireError):
        sequence_of({SEQUENCE: value})


KNOWN_READ = PeerRead(REF, Extent(2, 4), 0, Confirmed(ObjectVersion(REF, '"e"', 10), 0.0))
RIGHT = (
    (FROM, "owner"),
    (KNOWN, known_value(size=10, modified="")),
    ("content-range", "bytes 2-3/10"),
    (DIGEST, "xxh3:00112233"),
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (FROM, "other"), (FROM, None), (KNOWN, known_value(size=11, modified="")), (KNOWN, None),
        (KNOWN, known_value(size=10, modified="", etag='"f"')), (KNOWN, known_value(size=10, modified="later")),
        *((DIGEST, value) for value in ("xxh3", "xxh3:", "xxh3:XY", "xxh3:" + "0" * 200)),
        *(("content-range", value) for value in (None, "bytes 2-3/*", "bytes 2-4/10", "bytes 1-3/10", "bytes 2-2/10",
                                                 "bytes 2-3/11", "bytes 3-2/10", "2-3/10", "bytes 2-3/10,")),
    ],
)  # fmt: skip
def test_an_answer_that_does_not_prove_itself_is_not_believed(name: str, value: str | None) -> None:
    assert parse_answer(KNOWN_READ, 206, RIGHT, 2, "owner").extent == Extent(2, 4)
    others = tuple(pair for pair in RIGHT if pair[0] != name)
    wrong = others if value is None else (*others, (name, value))
    with pytest.raises(WireError):
        parse_answer(KNOWN_READ, 206, wrong, 2, "owner")


@pytest.mark.parametrize("length", [None, 0, 1, 3])
def test_an_answer_of_another_length_is_not_believed(length: int | None) -> None:
    with pytest.raises(WireError):
        parse_answer(KNOWN_READ, 206, RIGHT, length, "owner")


@pytest.mark.parametrize("pair", RIGHT[:3])
def test_a_header_that_came_twice_is_not_believed(pair: tuple[str, str]) -> None:
    with pytest.raises(WireError):
        parse_answer(KNOWN_READ, 206, (*RIGHT, pair), 2, "owner")


@pytest.mark.parametrize(
    ("read", "status"),
    [
        (KNOWN_READ, 200), (KNOWN_READ, 304), (KNOWN_READ, 404), (KNOWN_READ, 204), (KNOWN_READ, 302),
        (PeerRead(REF, None), 206), (PeerRead(REF, None), 304), (PeerRead(REF, None), 412),
        (PeerRead(REF, Extent(0, 5)), 200), (PeerRead(REF, Extent(20, 25)), 206),
    ],
)  # fmt: skip
def test_a_status_that_does_not_go_with_the_question_is_not_believed(read: PeerRead, status: int) -> None:
    with pytest.raises(WireError):
        parse_answer(read, status, RIGHT[:2], 2, "owner")


def test_a_version_alone_is_no_answer_where_there_are_bytes() -> None:
    past_the_end = PeerRead(REF, Extent(10, 12))
    assert parse_answer(past_the_end, 200, RIGHT[:2], 0, "owner").extent is None
    for read, length in ((past_the_end, 2), (past_the_end, None), (PeerRead(REF, Extent(9, 12)), 0), (KNOWN_READ, 0)):
        with pytest.raises(WireError):
            parse_answer(read, 200, RIGHT[:2], length, "owner")


def test_a_version_alone_is_an_answer_of_a_member_that_is_only_asked_for_what_it_has() -> None:
    read = PeerRead(REF, Extent(0, 10), only_if_cached=True)
    assert parse_answer(read, 200, RIGHT[:2], 0, "owner").extent is None
    for asked, length in ((read, 2), (replace(KNOWN_READ, only_if_cached=True), 0)):
        with pytest.raises(WireError):
            parse_answer(asked, 200, RIGHT[:2], length, "owner")


def test_no_bytes_are_no_part_of_an_object() -> None:
    fields = (*RIGHT[:2], ("content-range", "bytes 10-9/10"))
    with pytest.raises(WireError):
        parse_answer(PeerRead(REF, Extent(10, 12)), 206, fields, 0, "owner")


def test_another_version_is_believed_of_the_member_that_was_asked_alone() -> None:
    assert parse_answer(KNOWN_READ, 412, ((FROM, "owner"),), 0, "owner").confirmed is None
    with pytest.raises(WireError):
        parse_answer(KNOWN_READ, 412, ((FROM, "other"),), 0, "owner")


any_text = st.text(max_size=80)
mixed = st.dictionaries(
    st.sampled_from((PEER, KNOWN, SEQUENCE, FROM, DIGEST, "range", "content-range")),
    any_text | st.just(GOOD) | st.just(known_value()) | st.just("bytes=0-0"),
)  # fmt: skip


def tried(parse: Callable[[], object]) -> None:
    """Any other error than WireError fails the test."""
    with suppress(WireError):
        parse()


@given(st.sampled_from(("GET", "HEAD", "PUT")) | any_text, any_text | st.just("/b/k"), mixed)
def test_no_request_raises_anything_else(method: str, path: str, sent: dict[str, str]) -> None:
    tried(lambda: parse_read(method, path, sent))
    tried(lambda: parse_requester(sent))
    tried(lambda: sequence_of(sent))


@given(reads(), st.sampled_from((200, 206, 304, 412, 500)), mixed, st.none() | st.integers(0, 10))
def test_no_answer_raises_anything_else(
    read: PeerRead, status: int, fields: dict[str, str], length: int | None
) -> None:
    fields[FROM] = "owner"
    tried(lambda: parse_answer(read, status, tuple(fields.items()), length, "owner"))


@pytest.mark.parametrize(("etag", "is_believed"), [('"9a0364b9e99bb480dd25e1f0284c8555"', True), ('"constant"', False)])
def test_a_member_that_states_no_date_is_believed_only_of_a_hash(etag: str, is_believed: bool) -> None:
    version = ObjectVersion(REF, etag, 10, (("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT"),))
    read = replace(KNOWN_READ, known=Confirmed(version, 0.0))
    answer = tuple((name, known_value(size=10, etag=etag)) if name == KNOWN else (name, value) for name, value in RIGHT)
    if is_believed:
        assert parse_answer(read, 206, answer, 2, "owner").confirmed == Confirmed(version, 0.0)
    else:
        with pytest.raises(WireError):
            parse_answer(read, 206, answer, 2, "owner")
