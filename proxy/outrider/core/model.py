"""The nouns of the domain: objects, versions, extents, block keys. Sizes and offsets are `int` bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

Headers = tuple[tuple[str, str], ...]
"""Header names in lower case, in the order the origin sent them."""


# Not `sys.intern`: CPython 3.12 and free-threaded builds never free an interned string, and clients choose some of
# these.
@lru_cache(maxsize=4096)
def shared_text(text: str) -> str:
    """The same text. Texts that come often and are kept for long share one string."""
    return text


def shared_headers(headers: Iterable[tuple[str, str]]) -> Headers:
    """The same headers. Names, and pairs that come often, share one string or tuple over all versions: the headers of
    two small objects differ only in a date and an ETag, and would be a third of the memory that an object takes."""
    return tuple([_shared(name, value) for name, value in headers])


# A pair that comes once, as an ETag, soon makes room for those that come with each object.
@lru_cache(maxsize=1024)
def _shared(name: str, value: str) -> tuple[str, str]:
    return shared_text(name), value


KEY_BYTES_MAX = 1024
"""The longest key, in UTF-8. Source: Amazon S3 User Guide, "Naming Amazon S3 objects"."""


def is_too_long(key: str) -> bool:
    """Raises UnicodeEncodeError: the key has a surrogate that escapes no byte."""
    # The encoding takes time, and most keys are ASCII.
    return len(key) > KEY_BYTES_MAX or (
        not key.isascii() and len(key.encode("utf-8", "surrogateescape")) > KEY_BYTES_MAX
    )


class ObjectRef(NamedTuple):
    """A bucket and a key, percent-decoded. Bytes of the key that are no UTF-8 are kept as surrogate escapes."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    @property
    def folder(self) -> tuple[str, str]:
        """The bucket and the folder of an object: one job reads all objects in it alike."""
        return self.bucket, self.key.rpartition("/")[0]


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """A run of bytes, half-open `[start, stop)`."""

    start: int
    stop: int
    length: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"not an extent: [{self.start}, {self.stop})")
        # Made once: the way of a small miss asks for it some twenty times.
        object.__setattr__(self, "length", self.stop - self.start)


class VersionIdentity(NamedTuple):
    """The name of one content of an object. Two versions are compared by their identities, and by nothing else.
    `modified`: the Last-Modified as it was sent; empty: none was.

    No ETag names a content without its date. Some stores give the same one to all contents, also in the form of an MD5,
    and an overwrite may keep the size. The price: a second upload of the same bytes is another version.
    Source: RFC 9110 section 8.8.
    """

    etag: str
    size: int
    modified: str


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """One content of an object. `etag` is strong and quoted; `headers` are what a reply replays.

    `whole_headers`: the origin was asked in the form in which it states checksums of the whole object, so a checksum
    that is not among `headers` does not exist. False: `headers` came with a part of the object, or from a block file of
    an older release.
    """

    ref: ObjectRef
    etag: str
    size: int
    headers: Headers = ()
    whole_headers: bool = False

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"negative size: {self.size}")
        if not is_strong_etag(self.etag):
            raise ValueError(f"not a strong ETag: {self.etag!r}")

    @property
    def identity(self) -> VersionIdentity:
        return VersionIdentity(self.etag, self.size, last_modified(self.headers))


def last_modified(headers: Headers) -> str:
    """The Last-Modified as it was sent; empty: none was."""
    for name, value in headers:
        if name == "last-modified":
            return value
    return ""


class BlockKey(NamedTuple):
    """A block's identity: the version's digest (`BlockLayout.version_id`) and the index."""

    version_id: bytes
    index: int  # type: ignore[assignment]  # hides tuple.index, which is never called


# Bytes beyond ASCII (obs-text) come as text, or as surrogate escapes where they are no UTF-8.
_STRONG_ETAG = re.compile('"[^\x00-\x20"\x7f]+"')


def is_strong_etag(etag: str | None) -> bool:
    """A cache needs a strong validator: quoted, not `W/`, and not empty. Source: RFC 9110 section 8.8.3."""
    return etag is not None and _STRONG_ETAG.fullmatch(etag) is not None


# S3's ETags: the MD5 of the content, or of the MD5s of its parts.
_HASH = re.compile('"([0-9A-Fa-f]{32})(-[0-9]{1,5})?"')
# Two MD5s in 10^10 have no more than six of the sixteen digits. Constants that stores send for want of a hash, such as
# zeros alone, have fewer.
_DIGITS_MIN = 7


def is_hash(etag: str) -> bool:
    """Whether the ETag can be a hash of the content, as S3's are. The form alone proves nothing."""
    match = _HASH.fullmatch(etag)
    return match is not None and len(set(match[1].lower())) >= _DIGITS_MIN


def is_sendable(value: str) -> bool:
    """Whether the HTTP library can send a header value that came from the wire: bytes that are no UTF-8 come as
    surrogate escapes, which it refuses."""
    return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)


def quoted_etag(etag: str) -> str | None:
    """The strong ETag that `etag` stands for; None: it stands for none. Some stores list ETags without their quotes."""
    quoted = '"' + etag.strip('"') + '"'
    return quoted if is_strong_etag(quoted) else None
