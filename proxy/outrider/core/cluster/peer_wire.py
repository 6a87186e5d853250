"""The form of questions and answers between members: HTTP heads, and JSON.

A read is a GET, or a HEAD for the version alone, of `/BUCKET/KEY`. Its headers:

range              the bytes, as `bytes=FIRST-LAST`
x-outrider-peer    `v=1;from=NAME;ring=DIGEST;cluster=ID;hops=1;to=NAME;class=demand;only-if-here=0;checksums=0;
                   block=INDEX`
x-outrider-known   with a range: the known version, in base64 of JSON; absent: none is

An answer of status 200, 206 or 412 has `x-outrider-from`, the name of the member that gives it. It has
`x-outrider-known`, but not with 412: without headers, if the version was known to the one that asked. A 206 has
`content-range`, `x-outrider-digest` if the block has one, and `x-outrider-sends`: the bytes a second and the bodies
that the member sends to all others (`BYTES/BODIES`). The proof of an answer is `core.auth.peer_signature`'s.

Headers of an object are inside JSON, and so of any number, and of any bytes received from a bucket. Fields of later
versions of the wire, which this code does not know, are ignored. All that comes from the wire is checked here:
`WireError` is the only error.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from outrider.core.cluster.member import WIRE_VERSIONS
from outrider.core.cluster.peer_messages import NOT_STATED, Confirmed, PeerRead, ReadClass, Sending
from outrider.core.cluster.wire_forms import (
    NAME,
    NUMBER_MAX,
    WORD,
    WireError,
    as_json,
    json_object,
    matched,
    number,
    raw_bytes,
    seconds,
    text,
    truth,
    whole,
)
from outrider.core.model import (
    Extent,
    Headers,
    ObjectRef,
    ObjectVersion,
    is_hash,
    is_strong_etag,
    is_too_long,
    shared_headers,
)

PEER, KNOWN = "x-outrider-peer", "x-outrider-known"
FROM, DIGEST, SEQUENCE = "x-outrider-from", "x-outrider-digest", "x-outrider-seq"
SENDS = "x-outrider-sends"

FIELD_BYTES_MAX = 60 * 1024
"""The longest value of a header: `http.client` reads no line of more than 64 KiB. 700 headers of user metadata, which
S3 allows, are 21 KB."""

_HEADERS_MAX = 1024
_DIGEST = re.compile(r"[a-z0-9]{1,16}:[0-9a-f]{8,128}", re.ASCII)
_RANGE = re.compile(r"bytes=([0-9]{1,19})-([0-9]{1,19})", re.ASCII)
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})", re.ASCII)
_SEQUENCE = re.compile(r"([0-9]{1,19})\.([0-9]{1,19})", re.ASCII)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]{1,1024}", re.ASCII)
_NOT_IN_VALUE = re.compile("[\0\r\n]")


@dataclass(frozen=True, slots=True)
class Requester:
    """The member that asks. `ring`: the digest of its ring. `hops`: 1, or the request has been passed on. `wire`: the
    version that it speaks in this request, 1 or more; see `is_spoken`. `receiver`: the name of the member that is
    asked; empty: a hello to an address at which no member is known yet, or a request of a member before 0.3."""

    name: str
    ring: str
    cluster_id: str
    hops: int = 1
    wire: int = WIRE_VERSIONS[1]
    receiver: str = ""


@dataclass(frozen=True, slots=True)
class ReadHead:
    """The head of a read, unsigned. `path` is percent-encoded."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The head of an answer that is to be believed. `confirmed` None: the peer says that the bucket has another version
    than the known one."""

    confirmed: Confirmed | None
    extent: Extent | None
    digest: str
    sending: Sending = NOT_STATED


# -- a read ---------------------------------------------------------------------------------------------------------


def read_head(read: PeerRead, requester: Requester) -> ReadHead:
    """Raises WireError: the version has more headers than a request can carry."""
    headers = {
        PEER: f"{_requester_fields(requester)};class={read.read_class.value};only-if-here={int(read.only_if_cached)}"
        f";checksums={int(read.whole_headers)};block={read.index}"
    }
    if read.extent is not None:
        headers["range"] = f"bytes={read.extent.start}-{read.extent.stop - 1}"
    if read.known is not None:
        headers[KNOWN] = _known_value(read.known, with_headers=True)
    path = "/" + quote(raw_bytes(read.ref.bucket), safe="") + "/" + quote(raw_bytes(read.ref.key), safe="/")
    return ReadHead("HEAD" if read.extent is None else "GET", path, headers)


def control_headers(requester: Requester) -> dict[str, str]:
    """The headers of a hello or a forget."""
    return {PEER: _requester_fields(requester)}


def is_spoken(wire: int) -> bool:
    """Whether this code understands reads and forgets of that version. A hello is the same in all versions: members
    learn by it which ones they share."""
    return WIRE_VERSIONS[0] <= wire <= WIRE_VERSIONS[1]


def parse_requester(headers: Mapping[str, str]) -> Requester:
    """Raises WireError."""
    fields = _fields(headers)
    name = matched(NAME, fields.get("from", ""), "from")
    wire = number(fields.get("v", ""), "v")
    ring, cluster_id = (matched(WORD, fields.get(field, ""), field) for field in ("ring", "cluster"))
    receiver = matched(NAME, fields["to"], "to") if "to" in fields else ""
    return Requester(name, ring, cluster_id, number(fields.get("hops", ""), "hops"), wire, receiver)


def parse_read(method: str, raw_path: str, headers: Mapping[str, str]) -> PeerRead:
    """`raw_path`: as it came, without a query. `headers`: their names in lower case. Raises WireError."""
    ref = _ref_of(raw_path)
    fields = _fields(headers)
    try:
        read_class = ReadClass(fields.get("class", ""))
    except ValueError as error:
        raise WireError("the class is not known") from error
    extent = _extent_of_range(headers.get("range"))
    if method != ("HEAD" if extent is None else "GET"):
        raise WireError("the method does not go with the range")
    known = None
    if (value := headers.get(KNOWN)) is not None:
        known = _confirmed(_known_json(value), ref)
        if extent is None or extent.stop > known.version.size:
            raise WireError("no range of the known version")
    return PeerRead(
        ref, extent, number(fields.get("block", ""), "block"), known, read_class,
        only_if_cached=_flag(fields, "only-if-here"), whole_headers=_flag(fields, "checksums"),
    )  # fmt: skip


def sequence_of(headers: Mapping[str, str]) -> tuple[int, int]:
    """The boot and the number of a request, which no other request of its sender has. Raises WireError."""
    match = _SEQUENCE.fullmatch(headers.get(SEQUENCE, ""))
    if match is None:
        raise WireError("no sequence number")
    return int(match[1]), int(match[2])


# -- its answer -------------------------------------------------------------------------------------------------------


def answer_headers(read: PeerRead, answer: AnswerHead, name: str) -> Headers:
    """The headers of an answer to `read` by the member `name`. Raises WireError: the version has more headers than an
    answer can carry."""
    headers = [(FROM, name)]
    confirmed = answer.confirmed
    if confirmed is not None:
        with_headers = answer.extent is None or read.known is None
        headers.append((KNOWN, _known_value(confirmed, with_headers=with_headers)))
        if answer.extent is not None:
            span = f"bytes {answer.extent.start}-{answer.extent.stop - 1}/{confirmed.version.size}"
            headers.append(("content-range", span))
    if answer.digest:
        headers.append((DIGEST, answer.digest))
    if any(answer.sending):
        headers.append((SENDS, f"{answer.sending.bytes_s}/{answer.sending.bodies}"))
    return tuple(headers)


def parse_answer(read: PeerRead, status: int, headers: Headers, length: int | None, name: str) -> AnswerHead:
    """`length`: the stated length of the body. `name`: the member that was asked.

    Raises:
        WireError: the answer is not one of `name` to `read`, or does not hold together.
    """
    values = _once(headers)
    if values.get(FROM) != name:
        raise WireError("another member answers")
    if status == 412:
        if read.known is None:
            raise WireError("a version was refused that nobody named")
        return AnswerHead(None, None, "")
    confirmed = _answered_version(read, status, values)
    if status == 206:
        extent = _answered_extent(read, confirmed, values, length)
        bytes_s, _, bodies = values.get(SENDS, "0/0").partition("/")
        sending = Sending(number(bytes_s, "sends"), number(bodies, "sends"))
        return AnswerHead(confirmed, extent, _digest_of(values), sending)
    if status != 200:
        raise WireError("the status is not one of an answer")
    if read.extent is not None and (
        read.known is not None or (not read.only_if_cached and read.extent.start < confirmed.version.size)
    ):
        raise WireError("the answer has no bytes")
    if read.extent is not None and length != 0:
        raise WireError("the answer has bytes that nobody asked for")
    return AnswerHead(confirmed, None, "")


def _answered_version(read: PeerRead, status: int, values: Mapping[str, str]) -> Confirmed:
    fields = _known_json(values.get(KNOWN, ""))
    known = read.known
    if known is None or status == 200:
        return _confirmed(fields, read.ref)
    version = known.version
    # A member before 0.3 states no date. Its blocks may be of another one, which matters unless the ETag is a hash.
    undated = version.identity.modified if is_hash(version.etag) else ""
    if (fields.get("etag"), fields.get("size"), fields.get("modified", undated)) != version.identity:
        raise WireError("the version is not the one that was asked for")
    return Confirmed(version, seconds(fields, "age"), is_settled=truth(fields, "settled"))


def _answered_extent(
    read: PeerRead, confirmed: Confirmed, values: Mapping[str, str], length: int | None
) -> Extent:  # fmt: skip
    match = _CONTENT_RANGE.fullmatch(values.get("content-range", ""))
    if match is None or read.extent is None:
        raise WireError("no bytes were asked for, or the answer does not say which they are")
    start, last, size = (int(group) for group in match.groups())
    wanted = Extent(min(read.extent.start, size), min(read.extent.stop, size))
    fields = Extent(start, max(start, last + 1))
    if size != confirmed.version.size or fields != wanted or not wanted.length or length != wanted.length:
        raise WireError("the bytes are not those that were asked for")
    return wanted


def _digest_of(values: Mapping[str, str]) -> str:
    digest = values.get(DIGEST, "")
    return matched(_DIGEST, digest, "digest") if digest else ""


# -- a version ------------------------------------------------------------------------------------------------------


def _known_value(confirmed: Confirmed, *, with_headers: bool) -> str:
    version = confirmed.version
    fields: dict[str, object] = {
        **version.identity._asdict(), "age": confirmed.age_s, "settled": confirmed.is_settled,
    }  # fmt: skip
    if with_headers:
        fields |= {"whole": version.whole_headers, "headers": [list(pair) for pair in version.headers]}
    value = b64encode(as_json(fields)).decode()
    if len(value) > FIELD_BYTES_MAX:
        raise WireError("the version has too many headers")
    return value


def _known_json(value: str) -> dict[str, Any]:
    if len(value) > FIELD_BYTES_MAX:
        raise WireError("known: too long")
    try:
        return json_object(b64decode(value.encode(), validate=True))
    except (Base64Error, UnicodeEncodeError) as error:
        raise WireError("known: no base64") from error


def _confirmed(fields: dict[str, Any], ref: ObjectRef) -> Confirmed:
    """Written by hand, unlike `messages`: each read of a block has one. pydantic takes 15 us for it instead of 13."""
    etag = text(fields.get("etag"), "etag")
    if not is_strong_etag(etag):
        raise WireError("etag: not a strong one")
    pairs = fields.get("headers")
    if not isinstance(pairs, list) or len(pairs) > _HEADERS_MAX:
        raise WireError("headers: not a list, or too many")
    headers = shared_headers(_header_of(pair) for pair in pairs)
    version = ObjectVersion(ref, etag, whole(fields, "size"), headers, whole_headers=truth(fields, "whole"))
    return Confirmed(version, seconds(fields, "age"), is_settled=truth(fields, "settled"))


def _header_of(pair: object) -> tuple[str, str]:
    if not isinstance(pair, list) or len(pair) != 2:
        raise WireError("headers: no pair")
    name, value = text(pair[0], "headers"), text(pair[1], "headers")
    if _HEADER_NAME.fullmatch(name) is None or _NOT_IN_VALUE.search(value):
        raise WireError("headers: not a header")
    return name, value


# -- the forms ------------------------------------------------------------------------------------------------------


def _requester_fields(by: Requester) -> str:
    to = f";to={by.receiver}" if by.receiver else ""
    return f"v={by.wire};from={by.name};ring={by.ring};cluster={by.cluster_id};hops={by.hops}{to}"


def _fields(headers: Mapping[str, str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for field in headers.get(PEER, "").split(";"):
        name, equals, value = field.partition("=")
        if not equals or name in fields:
            raise WireError("a field without a value, or twice")
        fields[name] = value
    return fields


def _ref_of(raw_path: str) -> ObjectRef:
    bucket, slash, key = raw_path[1:].partition("/")
    ref = ObjectRef(_unescaped(bucket), _unescaped(key, safe="/"))
    if not raw_path.startswith("/") or not slash or not ref.bucket or not ref.key:
        raise WireError("the path names no object")
    if is_too_long(ref.key):
        raise WireError("the key is too long")
    return ref


def _extent_of_range(value: str | None) -> Extent | None:
    if value is None:
        return None
    match = _RANGE.fullmatch(value)
    if match is None or int(match[1]) > int(match[2]) or int(match[2]) >= NUMBER_MAX:
        raise WireError("range: not one of bytes")
    return Extent(int(match[1]), int(match[2]) + 1)


def _unescaped(value: str, safe: str = "") -> str:
    """Raises WireError: the value is not escaped as this module does it."""
    try:
        raw = unquote_to_bytes(value.encode("ascii"))
    except UnicodeEncodeError as error:
        raise WireError("not percent-encoded") from error
    if quote(raw, safe=safe) != value:
        raise WireError("not percent-encoded")
    return raw.decode("utf-8", "surrogateescape")


def _once(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in headers:
        if name in values and (name.startswith("x-outrider-") or name == "content-range"):
            raise WireError("a header came twice")
        values[name] = value
    return values


def _flag(fields: Mapping[str, str], field: str) -> bool:
    value = fields.get(field, "")
    if value not in ("0", "1"):
        raise WireError(f"{field}: neither 0 nor 1")
    return value == "1"
