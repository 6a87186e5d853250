"""Replies are read the same however their bytes are cut, as aiohttp's parser reads them, or refused."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.core.errors import Broke, OriginBroke
from outrider.core.origin.oddities import Oddity
from outrider.core.origin.reply_reader import ReplyReader
from tests.fuzz.origin_bytes import reply_of_the_origin

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def body_of(*parts: bytes, ends: bool = False, without_body: bool = False) -> tuple[ReplyReader, bytes]:
    reader = ReplyReader(without_body=without_body)
    body = b"".join(bytes(piece) for part in parts for piece in reader.feed(part))
    if ends:
        reader.end()
    return reader, body


FRAMINGS = {
    b"Content-Length: 5\r\n": b"hello",
    b"Content-Length: 5, 5\r\ncontent-length: 5\r\n": b"hello",
    b"Transfer-Encoding: chunked\r\n": b"2\r\nhe\r\n003;a=b\r\nllo\r\n0\r\nx-trailer: 1\r\n\r\n",
    b"Transfer-Encoding: gzip, Chunked\r\nContent-Length: 9\r\n": b"5 \r\nhello\r\n0\n\n",
    b"": b"hello",
    b"Transfer-Encoding: identity\r\n": b"hello",
}
REPLIES = [
    interim + OK + odd + framing + b"\r\n" + body
    for framing, body in FRAMINGS.items()
    for odd in (b"", b"x-a/b : 1\r\nx-folded: a\r\n\tb\r\n")
    for interim in (b"", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")
]


@given(st.sampled_from(REPLIES), st.lists(st.integers(0, 300), max_size=8))
@example(REPLIES[0], list(range(300)))
@example(REPLIES[-1], list(range(300)))
def test_however_a_reply_is_cut_it_is_read_the_same(reply: bytes, cuts: list[int]) -> None:
    stops = [*sorted(cuts), len(reply)]
    reader, body = body_of(*(reply[start:stop] for start, stop in zip([0, *stops], stops, strict=False)), ends=True)
    whole, _ = body_of(reply, ends=True)
    assert (reader.status, body, reader.is_over) == (200, b"hello", True)
    assert (reader.headers, reader.content_length, reader.oddities) == (
        whole.headers, whole.content_length, whole.oddities
    )  # fmt: skip


@given(st.sampled_from(REPLIES), st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=3)), max_size=3))
def test_what_is_changed_in_a_reply_is_read_as_aiohttp_does_or_refused(
    reply: bytes, changes: list[tuple[int, bytes]]
) -> None:
    for at, text in changes:
        reply = reply[:at] + text + reply[at + len(text) :]
    reply_of_the_origin(reply)


@pytest.mark.parametrize("cut", range(1, 5))
@pytest.mark.parametrize("framing", [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_a_body_that_breaks_off_is_never_whole(framing: bytes, cut: int) -> None:
    reply = OK + framing + b"\r\n" + FRAMINGS[framing]
    with pytest.raises(OriginBroke, match="shorter") as broke:
        body_of(reply[:-cut], ends=True)
    assert broke.value.cause is Broke.OTHER


def test_an_end_before_a_reply_is_no_reply() -> None:
    with pytest.raises(OriginBroke, match="before a reply"):
        body_of(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n", ends=True)


@pytest.mark.parametrize(
    "body",
    [b"2\r\nheXX3\r\nllo\r\n0\r\n\r\n", b"2\r\nheXX\r\n3\r\nllo\r\n0\r\n\r\n",
     b"+5\r\nhello\r\n0\r\n\r\n", b"0x5\r\nhello\r\n0\r\n\r\n", b"\r\n0\r\n\r\n",
     b"1_0\r\nhello\r\n0\r\n\r\n", b"5" * 9000, b"0\r\n" + b"x: y\r\n" * 20_000],
)  # fmt: skip
def test_chunks_that_can_be_read_in_two_ways_are_refused(body: bytes) -> None:
    with pytest.raises(OriginBroke) as broke:
        body_of(CHUNKED, body)
    assert (broke.value.cause, broke.value.lasting) == (Broke.UNREADABLE, False)


@pytest.mark.parametrize(
    "head",
    [b"HTTP/2 200 OK\r\n\r\n", b"SSH-2.0\r\n", b"\x16\x03\x01", OK + b"Content-Length: +5\r\n\r\n", OK + b"x" * 70_000,
     OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", OK + b"x: y\r\n \r\nContent-Length: 5\r\n\r\n",
     OK + b"Transfer-Encoding: chunked, chunked\r\n\r\n"],
)  # fmt: skip
def test_a_head_that_can_be_read_in_two_ways_is_refused_for_good(head: bytes) -> None:
    with pytest.raises(OriginBroke, match="cannot be read") as broke:
        body_of(head)
    assert (broke.value.cause, broke.value.lasting) == (Broke.UNREADABLE, True)


@pytest.mark.parametrize(
    ("head", "keeps"),
    [
        (OK, True), (OK + b"Connection: close\r\n", False), (OK + b"Connection: Keep-Alive, Close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False), (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", True),
    ],
)  # fmt: skip
def test_a_connection_is_kept_if_the_head_says_so(head: bytes, keeps: bool) -> None:
    assert body_of(head + b"Content-Length: 0\r\n\r\n")[0].keeps is keeps


def test_a_connection_with_a_doubtful_end_of_the_body_is_not_kept() -> None:
    assert not body_of(OK + b"\r\nhello")[0].keeps, "until it ends"
    assert not body_of(OK + b"Content-Length: 5\r\n\r\nhello?")[0].keeps, "more came"
    assert not body_of(OK + b"Content-Length: 5\r\n\r\nhello", b"?")[0].keeps, "more came"
    assert not body_of(CHUNKED, b"0\r\n\r\n?")[0].keeps, "more came"
    twice, _ = body_of(OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    assert (twice.keeps, twice.is_over) == (False, True)
    assert twice.oddities == ((Oddity.FRAMING_ODD, "content-length"),)


@pytest.mark.parametrize("status", [204, 304, 200])
def test_a_reply_without_a_body_is_over_with_its_head(status: int) -> None:
    head = b"HTTP/1.1 %d x\r\nContent-Length: 9\r\n\r\n" % status
    reader, _ = body_of(head, without_body=status == 200)
    assert (reader.is_over, reader.keeps, reader.content_length) == (True, True, 9)
    assert (*reader.feed(b"?"), reader.keeps) == (False,), "nobody requested more"


def test_bytes_may_pass_by_a_body_that_is_measured() -> None:
    reader, body = body_of(OK + b"Content-Length: 5\r\n\r\nhe")
    assert (reader.is_measured, reader.left, body) == (True, 3, b"he")
    reader.passed(3)
    assert reader.is_over
    assert not body_of(CHUNKED + b"5\r\nhe")[0].is_measured
    assert not body_of(OK + b"\r\nhe")[0].is_measured


def test_an_interim_head_says_to_go_on() -> None:
    reader, _ = body_of(b"HTTP/1.1 100 Contin")
    assert not reader.goes_on
    reader.feed(b"ue\r\n\r\n")
    assert (reader.goes_on, reader.status) == (True, 0)
