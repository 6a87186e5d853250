"""Heads of replies that a strict parser refuses: mended without a doubt about the end of the body, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.origin.reply_head import UnreadableHead, mend, split


def mended(*lines: bytes) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
    found = mend(b"\r\n".join((b"HTTP/1.1 200 OK", *lines, b"", b"")))
    return list(found.headers), found.odd


@pytest.mark.parametrize(
    ("line", "headers", "odd"),
    [
        (b"x-amz-meta-a/b: 1", [(b"x-amz-meta-a/b", b"1")], b"x-amz-meta-a/b"),
        (b"x-amz-meta-(a): 1", [(b"x-amz-meta-(a)", b"1")], b"x-amz-meta-(a)"),
        (b"x-a : 1", [(b"x-a", b"1")], b"x-a"),
        (b"x-a: \xe9\x01b", [(b"x-a", b"\xe9\x01b")], None),
        (b"x-a: b\r\n\t c", [(b"x-a", b"b c")], None),
        # Clients would take the headers after these for the body, or see another header.
        (b"x-a b: 1", [], b"x-a b"),
        (b"x-\xc3\xa9: 1", [], b"x-\xc3\xa9"),
        (b"no header", [], b"no header"),
        (b": 1", [], b":"),
        (b"x-a: b\rset-cookie: c\x00d", [(b"x-a", b"b set-cookie: c d")], b"x-a"),
    ],
)
def test_a_header_is_passed_on_or_left_out(line: bytes, headers: list[tuple[bytes, bytes]], odd: bytes | None) -> None:
    assert mended(line, b"x-z: last") == ([*headers, (b"x-z", b"last")], odd)


def test_the_parser_is_given_the_framing_alone() -> None:
    found = mend(b"HTTP/1.1 206 Partial\nx/y: 1\nContent-Length : 5\nContent-Length: 5, 5\nConnection: close\n\n")
    assert found.head == b"HTTP/1.1 206 Partial\r\nconnection: close\r\ncontent-length: 5\r\n\r\n"
    assert found.headers == ((b"x/y", b"1"), (b"Connection", b"close"), (b"content-length", b"5"))


def test_of_two_framings_the_one_by_chunks_counts_and_the_connection_ends() -> None:
    found = mend(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert found.head == b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    assert found.headers == ((b"Transfer-Encoding", b"chunked"),)
    assert found.framed_twice


@pytest.mark.parametrize("length", [b"5\r\nContent-Length: 6", b"5, 6", b"+5", b"", b"five", b"5 5"])
def test_a_length_that_can_be_read_in_two_ways_is_refused(length: bytes) -> None:
    with pytest.raises(UnreadableHead, match="Content-Length"):
        mended(b"Content-Length: " + length)


def test_a_head_is_found_behind_interim_ones_once_it_is_whole() -> None:
    assert split(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 X\r\n\r\nHTTP/1.1 200 OK\r\na/b: 1\r\n") is None
    assert split(b"\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\na/b: 1\n\nbody\n\n") == (
        b"HTTP/1.1 200 OK\na/b: 1\n\n",
        b"body\n\n",
    )
    assert split(b"HTTP/1.1 101 Switching\r\n\r\nrest") == (b"HTTP/1.1 101 Switching\r\n\r\n", b"rest")


@given(st.lists(st.binary(max_size=12).map(lambda text: text.replace(b"\n", b"\r")), max_size=6))
def test_no_header_can_end_another_one(lines: list[bytes]) -> None:
    try:
        found = mend(b"\r\n".join((b"HTTP/1.1 200 OK", *lines, b"", b"")))
    except UnreadableHead:
        return
    for name, value in found.headers:
        assert name.isascii()
        assert not set(name) & set(b"\r\n\x00: ")
        assert not set(value) & set(b"\r\n\x00")
