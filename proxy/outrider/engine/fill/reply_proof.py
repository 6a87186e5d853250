"""Which bytes of an object the body of a reply has, as far as the reply proves it.

The proof is in the status, the Content-Range and the length. An origin may send what it likes: a reply that proves
nothing is not kept, and no byte of it is sent under a claim that it does not make itself.
"""

from __future__ import annotations

from typing import NamedTuple

from outrider.core.errors import Signal, VersionChanged
from outrider.core.model import Extent, ObjectVersion
from outrider.core.origin.oddities import Oddity, sentence
from outrider.core.s3.ranges import is_impossible_range, parse_content_range
from outrider.ports import OriginReply

# A reply that contradicts itself, or another one, is most likely a fault that passes: as many tries as after a broken
# connection. Any other reply without a proof shows how the origin is.
_CONTRADICTIONS = (Oddity.LENGTH_OTHER, Oddity.RANGE_OTHER, Oddity.SIZES_DIFFER)
_TRIES = 5


def is_odd_success(status: int) -> bool:
    """Whether it is no refusal, and neither 200 nor 206. The body may be an object, and no error document that may be
    cut."""
    return status not in (200, 206) and (status < 300 or status == 304)


class Unproved(Signal):
    """The replies of the origin do not prove which bytes they bring. `why`: how."""

    def __init__(self, why: Oddity) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return sentence(self.why)

    def may_pass(self, tries: int, otherwise: int = 2) -> bool:
        """Whether one more try, after so many, may bring a reply that proves its bytes. `otherwise`: how many tries a
        reply gets that contradicts nothing."""
        return tries < (_TRIES if self.why in _CONTRADICTIONS else otherwise)

    def __copy__(self) -> Unproved:
        return Unproved(self.why)


class Redated(VersionChanged):
    """The origin has a version with the same ETag and another date. The bytes may be the same, or others."""


class ProvedBody(NamedTuple):
    """The body of a 200 or 206. `start`: which byte of the object is its first. `length`: how many bytes it has; None:
    it ends where the origin ends it. `size`: that of the whole object; None: the reply does not state it, and the body
    may also be the part that was requested. `odd`: what is odd, though proved."""

    start: int
    length: int | None
    size: int | None
    odd: Oddity | None = None


def proved_body(reply: OriginReply, requested: Extent | None, size: int | None = None) -> ProvedBody:
    """`requested`: the Range of the request; None: it had none. `size`: of the object, where it is known.

    Raises:
        Unproved: the reply contradicts itself, or the known size, or does not prove which bytes it has.
    """
    headers = dict(reply.headers)
    if requested is not None and headers.get("content-type", "").lower().startswith("multipart/byteranges"):
        raise Unproved(Oddity.RANGE_MULTIPART)
    length = reply.content_length
    if (stated := headers.get("content-range")) is not None:
        return _stated(reply.status, stated, length, requested)
    if reply.status == 206:
        raise Unproved(Oddity.RANGE_UNPROVED)
    if requested is None:
        if size is not None and length not in (size, None):
            raise Unproved(Oddity.SIZES_DIFFER)
        return ProvedBody(0, length, length, Oddity.LENGTH_UNKNOWN if length is None else None)
    return _whole_or_part(length, requested, size)


def _stated(status: int, stated: str, length: int | None, requested: Extent | None) -> ProvedBody:
    got = parse_content_range(stated)
    if got is None:
        raise Unproved(Oddity.RANGE_OTHER if is_impossible_range(stated) else Oddity.RANGE_UNPROVED)
    extent, size = got
    stated_length = extent.length
    if length is not None and length != stated_length:
        raise Unproved(Oddity.LENGTH_OTHER)
    odd = None
    if requested is None:
        odd = Oddity.RANGE_UNASKED if status == 206 or stated_length < size else None
    elif stated_length == size and (extent.start < requested.start or requested.stop < extent.stop):
        odd = Oddity.RANGE_IGNORED
    elif status == 200:
        odd = Oddity.RANGE_AS_200
    return ProvedBody(extent.start, stated_length, size, odd)


def _whole_or_part(length: int | None, requested: Extent, size: int | None) -> ProvedBody:
    """A 200 to a Range, without a Content-Range: the whole object, or the part alone under the wrong status."""
    if size is not None:
        if length == size:
            return ProvedBody(0, length, size, Oddity.RANGE_IGNORED)
        if length is None and requested.start == 0:
            # Both begin with the same byte. The bytes are counted as they come.
            return ProvedBody(0, None, size, Oddity.LENGTH_UNKNOWN)
        raise Unproved(Oddity.LENGTH_UNKNOWN if length is None else Oddity.RANGE_AS_200)
    if length is None:
        return ProvedBody(0, None, None, Oddity.LENGTH_UNKNOWN)
    # No part is longer than the Range. One that begins at 0 and is shorter ends with the object.
    if length > requested.length or (requested.start == 0 and length < requested.length):
        return ProvedBody(0, length, length, Oddity.RANGE_IGNORED)
    return ProvedBody(0, length, None, Oddity.RANGE_AS_200)


def check_version(reply: OriginReply, version: ObjectVersion) -> None:
    """Compare the validators of a 200 or 206 with those of `version`.

    Raises:
        VersionChanged: the origin has another version; Unproved: it sends the bytes of `version` in another encoding.
    """
    headers, known = dict(reply.headers), dict(version.headers)
    # Not all origins heed If-Match on a GET: the ETag of the reply decides.
    if headers.get("etag") != version.etag:
        raise VersionChanged(f"{version.ref}: another ETag")
    # It may be a second upload of the same bytes. That an ETag looks like a hash is no proof of it.
    if _differ(headers.get("last-modified"), known.get("last-modified")):
        raise Redated(f"{version.ref}: another date under one ETag")
    # The bytes of the same object, encoded on their way or not, must not be mixed.
    if headers.get("content-encoding", "identity") != known.get("content-encoding", "identity"):
        raise Unproved(Oddity.ENCODED)


def proved_body_of(reply: OriginReply, version: ObjectVersion, extent: Extent) -> ProvedBody:
    """The body of a 200 or 206 to a Range for `extent` of `version`. It begins with the first byte of `extent`, or with
    the object. Raises what `check_version` and `proved_body` raise."""
    check_version(reply, version)
    body = proved_body(reply, extent, version.size)
    if body.size != version.size:
        raise Unproved(Oddity.SIZES_DIFFER)
    if body.start != extent.start and body.odd is not Oddity.RANGE_IGNORED:
        raise Unproved(Oddity.RANGE_OTHER)
    return body


def begins_with(reply: OriginReply, body: ProvedBody, extent: Extent) -> bool:
    """Whether the body begins with the first byte of `extent`, and has no byte that the reply does not name."""
    if body.start != extent.start:
        return False
    # Chunks may go on beyond the bytes that the reply names.
    bounded = reply.content_length is not None or body.length is None
    return bounded or (body.length is not None and body.start + body.length >= extent.stop)


def _differ(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and one != other
