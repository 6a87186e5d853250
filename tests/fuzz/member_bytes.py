"""Targets: bytes that another member of the cluster sends. Each is a message, or a WireError and nothing else."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import replace
from typing import Any

from outrider.core.cluster import peer_wire
from outrider.core.cluster.held_blocks import HeldBlocks
from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import (
    BegunRead,
    Command,
    CommandAnswer,
    DatasetShare,
    DatasetShares,
    Forget,
    Hello,
    ListedPage,
    ListRequest,
    OrderNotice,
    PinPage,
    PinReport,
    PinsReport,
    ReadsNotice,
    SharesRequest,
)
from outrider.core.cluster.peer_messages import Confirmed, PeerRead, ReadClass
from outrider.core.cluster.peer_wire import AnswerHead, Requester
from outrider.core.cluster.wire_forms import WireError, decode, encode
from outrider.core.model import Extent, Headers, ObjectRef, ObjectVersion, VersionIdentity
from tests.fuzz.target import target

_REF = ObjectRef("bucket", "key\udcff/é")
_VERSION = ObjectVersion(_REF, '"e"', 100, (("content-type", "a/b"), ("x-amz-meta-a", "é")))
_CONFIRMED = Confirmed(_VERSION, 1.5, is_settled=True)
_ASKER = Requester("edge-1.local", "aa11", "bb22")
_READS = (
    PeerRead(_REF, Extent(0, 10), 0, _CONFIRMED, ReadClass.AHEAD, only_if_cached=True),
    PeerRead(_REF, Extent(10, 20), 1),
    PeerRead(_REF, None, whole_headers=True),
)
_OBJECTS = ((ObjectRef("b", "k"), VersionIdentity('"e"', 5, "Thu, 01 Jan 2026 00:00:00 GMT")),)


def _lines(first: str, headers: Any) -> bytes:
    """A head in lines. The known version stands there without its base64, in which a change would make no other
    version."""
    lines = [first]
    for name, value in headers:
        lines.append(f"{name}: {b64decode(value).decode() if name == peer_wire.KNOWN else value}")
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def _head_of(data: bytes) -> tuple[str, Headers]:
    first, *lines = data.decode("utf-8", "surrogateescape").split("\n")
    headers = []
    for line in lines:
        name, _, value = line.partition(": ")
        if name == peer_wire.KNOWN:
            value = b64encode(value.encode("utf-8", "surrogateescape")).decode()
        headers.append((name, value))
    return first, tuple(headers)


@target(
    *(
        _lines(f"{head.method} {head.path}", [*head.headers.items(), (peer_wire.SEQUENCE, "7.1")])
        for head in (peer_wire.read_head(read, _ASKER) for read in _READS)
    )
)
def read_of_a_member(data: bytes) -> None:
    """A read that is understood is the same when it is written anew."""
    first, pairs = _head_of(data)
    headers = dict(pairs)
    method, _, path = first.partition(" ")
    with suppress(WireError):
        peer_wire.sequence_of(headers)
    with suppress(WireError):
        requester = peer_wire.parse_requester(headers)
        assert peer_wire.parse_requester(peer_wire.control_headers(requester)) == requester
        peer_wire.is_spoken(requester.wire)
    try:
        read = peer_wire.parse_read(method, path, headers)
    except WireError:
        return
    with suppress(WireError):  # spelled out, a version may be too long
        head = peer_wire.read_head(read, _ASKER)
        assert head.path == path
        assert peer_wire.parse_read(head.method, head.path, head.headers) == read


@target(
    *(
        _lines(f"{number} {status} {length}", peer_wire.answer_headers(_READS[number], answer, "owner"))
        for number, status, length, answer in (
            (0, 206, 10, AnswerHead(_CONFIRMED, Extent(0, 10), "xxh3:" + "0" * 32)),
            (1, 206, 10, AnswerHead(_CONFIRMED, Extent(10, 20), "")),
            (2, 200, 0, AnswerHead(_CONFIRMED, None, "")),
            (0, 412, 0, AnswerHead(None, None, "")),
        )
    )
)
def answer_of_a_member(data: bytes) -> None:
    """An answer that is believed has the bytes, and the version, that were asked for."""
    first, headers = _head_of(data)
    numbers = [int(text) for text in first.split(" ") if text.isascii() and text.isdecimal() and len(text) < 19]
    number, status, length = (*numbers, 0, 206, 10)[:3]
    read = _READS[number % len(_READS)]
    try:
        answer = peer_wire.parse_answer(read, status, headers, length, "owner")
    except WireError:
        return
    assert answer.confirmed is None or answer.confirmed.version.ref == read.ref
    if answer.extent is not None:
        assert answer.confirmed is not None
        assert read.extent is not None
        assert answer.extent.length == length
        assert answer.extent.start == read.extent.start
        assert answer.extent.stop <= min(read.extent.stop, answer.confirmed.version.size)
        assert read.known is None or answer.confirmed.version == read.known.version


def _hello() -> Hello:
    return Hello(Member("n", "127.0.0.1:1", "zone", 10**12, "cluster"), 7, "ring", 3, 1.8e9)


_MESSAGES: tuple[Any, ...] = (
    _hello(), Forget("n", 1, 2, (_REF, "bucket"), in_doubt=True),
    Command("n", "put", "warm", "o", "a", b"s3://b/", 1.5), CommandAnswer({"state": "done"}, "e", "c"),
    OrderNotice("n", 1, 2, 3, "c", (_REF,), 0, 12),
    ReadsNotice("n", 2, (BegunRead("10.0.0.1", _REF, 5, 0.5),)),
    DatasetShares((DatasetShare("b", "a-{}.tar", 12, 34, 5, 6),)),
    ListRequest("n", "b", (("prefix", "a/"),)), ListedPage(1.5, (("etag", "x"),), b"page"),
    SharesRequest("n"), HeldBlocks((None, (b"1" * 16, 2, 3))), PinPage("c", 1.0, b"s3://b/k", _OBJECTS, more=True),
    PinsReport((PinReport("o", "n", 1.0, has_ended=False),)),
)  # fmt: skip


@target(*map(encode, _MESSAGES), bytes_max=16384)
def body_of_a_member(data: bytes) -> None:
    """A body that is understood is the same when it is written anew."""
    for sample in _MESSAGES:
        kind: Any = type(sample)
        try:
            message = decode(kind, data)
        except WireError:
            continue
        again = decode(kind, encode(message))
        if isinstance(message, ReadsNotice):
            again = replace(again, reads=message.reads)  # milliseconds are rounded
        assert again == message or json.dumps(str(again)) == json.dumps(str(message)), (message, again)
