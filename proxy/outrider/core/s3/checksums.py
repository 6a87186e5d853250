"""The proof that a reply of the bucket gives for the bytes of an object: a checksum of the whole object, or an ETag
that is an MD5.

Source: S3 user guide, "Checking object integrity in Amazon S3" and "Object ETag"; S3 API reference, HeadObject.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from hashlib import md5, sha1, sha256
from typing import Any, Protocol

from outrider.core.model import Headers, ObjectVersion

_PLAIN_MD5 = re.compile(r'"([0-9a-f]{32})"')
# The ETag of an object that came by one upload, be it an MD5 or not. All others may belong to an upload in parts: S3's
# end in the number of parts.
_OF_ONE_UPLOAD = re.compile(r'"[0-9A-Fa-f]{32}"')
# A cold small read costs the proxy 1.5 ms of CPU time, and its verification may add 5 % to that: 75 us, in which SHA-1
# or SHA-256 (2 GB/s) take in 128 KiB. A CRC (30 GB/s) is cheap at any size. MD5 (0.84 GB/s) is used beyond that, where
# it costs less than the HEAD that would have to state a checksum: a second request for each image of a dataset.
MD5_BYTES_MAX = 256 * 1024
_SHA_BYTES_MAX = 128 * 1024


class Hash(Protocol):
    """A running hash of a body."""

    def update(self, data: Any, /) -> None: ...
    def digest(self) -> bytes: ...


class Kind(Enum):
    """A kind of content hash; the value is the end of its header's name."""

    CRC64NVME = "crc64nvme"
    CRC32C = "crc32c"
    CRC32 = "crc32"
    SHA1 = "sha1"
    SHA256 = "sha256"
    MD5 = "md5"

    @property
    def is_crc(self) -> bool:
        """The hash of a whole follows from the hashes of its parts: see `combined`."""
        return self in _CRCS

    @property
    def model(self) -> str:
        """The name of the CRC, as anycrc knows it."""
        return _CRCS[self]

    @property
    def digest_bytes(self) -> int:
        return _DIGEST_BYTES[self]

    def in_bytes(self, crc: int) -> bytes:
        """A digest of this CRC."""
        return crc.to_bytes(self.digest_bytes, "big")

    def begin(self) -> Hash:
        return _Crc(self) if self.is_crc else _BEGIN[self]()


_CRCS = {Kind.CRC64NVME: "CRC64-NVME", Kind.CRC32C: "CRC32C", Kind.CRC32: "CRC32"}
_BEGIN: Mapping[Kind, Callable[[], Hash]] = {
    Kind.SHA1: lambda: sha1(usedforsecurity=False), Kind.SHA256: sha256, Kind.MD5: lambda: md5(usedforsecurity=False),
}  # fmt: skip
_DIGEST_BYTES = {
    Kind.CRC64NVME: 8, Kind.CRC32C: 4, Kind.CRC32: 4, Kind.SHA1: 20, Kind.SHA256: 32, Kind.MD5: 16,
}  # fmt: skip


@cache
def _model(kind: Kind) -> Any:
    # Imported at the first checksum: a proxy whose bucket states none does without its megabyte.
    import anycrc

    return anycrc.Model(kind.model)


class _Crc:
    __slots__ = ("_calc", "_crc", "_kind")

    def __init__(self, kind: Kind) -> None:
        self._calc = _model(kind).calc
        self._crc = 0
        self._kind = kind

    def update(self, data: Any, /) -> None:
        self._crc = self._calc(data, self._crc)

    def digest(self) -> bytes:
        return self._kind.in_bytes(self._crc)


def combined(kind: Kind, parts: Iterable[tuple[int, int]]) -> bytes:
    """The CRC of bytes that were hashed in parts. `parts`: the CRC of each part and its length, in order.

    A CRC is linear over GF(2): the CRC of A and B is that of A, shifted by the length of B, plus that of B.
    """
    combine, crc = _model(kind).combine, 0
    for part, length in parts:
        crc = combine(crc, part, length)
    return kind.in_bytes(int(crc))


@dataclass(frozen=True, slots=True)
class ContentProof:
    """The bucket's word for the content of a whole object."""

    kind: Kind
    digest: bytes


_CHECKSUM_HEADERS = {kind: f"x-amz-checksum-{kind.value}" for kind in Kind}


def checksum_of(etag: str, headers: Headers) -> ContentProof | None:
    """The checksum of the whole object that a reply states; the cheapest one, if there are several.

    None: there is none. A COMPOSITE checksum is one of the checksums of the parts of an upload, and nothing says where
    the parts ended. Stores that send no type send it without a mark, too: such a checksum counts only where the ETag
    shows that the object came by one upload.
    """
    stated = {name: value for name, value in headers if name.startswith("x-amz-checksum-")}
    if not stated:
        return None
    form = stated.get("x-amz-checksum-type")
    if form is None:
        if _OF_ONE_UPLOAD.fullmatch(etag) is None:
            return None
    elif form.upper() != "FULL_OBJECT":
        return None
    for kind in Kind:
        value = stated.get(_CHECKSUM_HEADERS[kind])
        if value is not None and len(digest := _decoded(value)) == kind.digest_bytes:
            return ContentProof(kind, digest)
    return None


def _decoded(value: str) -> bytes:
    """Empty: it is no base64. The `-3` at the end of a composite checksum is none."""
    try:
        return b64decode(value, validate=True)
    except ValueError:
        return b""


def md5_of(etag: str, headers: Headers) -> ContentProof | None:
    """The MD5 of the object that its ETag most likely is; None: it cannot be one.

    The ETag of a multipart upload has a `-`. With keys of KMS or of the client it is no MD5 either.
    """
    match = _PLAIN_MD5.fullmatch(etag)
    if match is None:
        return None
    for name, value in headers:
        if name == "x-amz-server-side-encryption" and value.lower().startswith("aws:kms"):
            return None
        if name == "x-amz-server-side-encryption-customer-algorithm":
            return None
    return ContentProof(Kind.MD5, bytes.fromhex(match[1]))


def small_proof_of(version: ObjectVersion) -> ContentProof | None:
    """The proof that is worth its price for an object whose bytes all pass through one hash; None: the replies so far
    state none."""
    proof = checksum_of(version.etag, version.headers)
    if proof is not None and (proof.kind.is_crc or version.size <= _SHA_BYTES_MAX):
        return proof
    return md5_of(version.etag, version.headers) if version.size <= MD5_BYTES_MAX else None
