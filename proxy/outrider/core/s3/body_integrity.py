"""The body of a request as its headers state it: its form, its decoded length, its checksums.

Source: Amazon S3 API Reference, "Authenticating Requests (AWS Signature Version 4)"; S3 User Guide, "Checking
object integrity".
"""

from __future__ import annotations

import re
from base64 import b64encode
from binascii import Error as Base64Error
from binascii import a2b_base64
from dataclasses import dataclass
from enum import Enum
from hashlib import sha512
from typing import TYPE_CHECKING

from outrider.core.errors import BadDigest, InvalidArgument, InvalidRequest
from outrider.core.s3.checksums import Hash, Kind
from outrider.core.s3.encoding import canonical_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_LENGTH = re.compile(r"[0-9]{1,19}")

# The digest size of every checksum that S3 knows, in bytes. The value on the wire is the digest in base64.
_DIGEST_BYTES = {f"x-amz-checksum-{kind.value}": kind.digest_bytes for kind in Kind} | {
    "x-amz-checksum-sha512": 64,
    "x-amz-checksum-xxhash3": 8,
    "x-amz-checksum-xxhash64": 8,
    "x-amz-checksum-xxhash128": 16,
}
CHECKSUM_CHARS = {name: -(-size // 3) * 4 for name, size in _DIGEST_BYTES.items()}
"""The length of the value of each checksum header on the wire."""


class PayloadForm(Enum):
    """The forms of a body that x-amz-content-sha256 can announce."""

    HASHED = "a hash"
    UNSIGNED = "UNSIGNED-PAYLOAD"
    SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    SIGNED_CHUNKS_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
    UNSIGNED_CHUNKS_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


@dataclass(frozen=True, slots=True)
class PayloadRule:
    """The form that the body must have. `sha256` (lower-case hex) is None unless the form is `HASHED`."""

    form: PayloadForm
    sha256: str | None = None

    @property
    def chunked(self) -> bool:
        """The body is aws-chunked."""
        return self.form not in (PayloadForm.HASHED, PayloadForm.UNSIGNED)

    @property
    def chunks_signed(self) -> bool:
        return self.form in (PayloadForm.SIGNED_CHUNKS, PayloadForm.SIGNED_CHUNKS_TRAILER)

    @property
    def trailers_expected(self) -> bool:
        return self.form in (PayloadForm.SIGNED_CHUNKS_TRAILER, PayloadForm.UNSIGNED_CHUNKS_TRAILER)


UNSIGNED = PayloadRule(PayloadForm.UNSIGNED)
_PAYLOADS = {form.value: PayloadRule(form) for form in PayloadForm if form is not PayloadForm.HASHED}


def payload_rule(headers: Iterable[tuple[str, str]]) -> PayloadRule:
    """The rule that x-amz-content-sha256 states.

    Without the header the body is `UNSIGNED`. If Content-Encoding names aws-chunked, it is in unsigned chunks: botocore
    sends no x-amz-content-sha256 where it does not sign.

    Raises:
        InvalidArgument: S3 knows no such value.
        InvalidRequest: an ECDSA form (SigV4A), for which the proxy has no keys.
    """
    values = canonical_values(headers)
    if (stated := values.get("x-amz-content-sha256")) is not None:
        return payload_of(stated)
    codings = {coding.strip().lower() for coding in values.get("content-encoding", "").split(",")}
    if "aws-chunked" in codings and not values.keys().isdisjoint(("x-amz-trailer", "x-amz-decoded-content-length")):
        return _PAYLOADS[PayloadForm.UNSIGNED_CHUNKS_TRAILER.value]
    return UNSIGNED


def payload_of(value: str) -> PayloadRule:
    """As `payload_rule`, from the header's value."""
    payload = _PAYLOADS.get(value)
    if payload is not None:
        return payload
    if _SHA256.fullmatch(value) is not None:
        return PayloadRule(PayloadForm.HASHED, value.lower())
    if value.startswith("STREAMING-AWS4-ECDSA-"):
        raise InvalidRequest("Signature Version 4A (ECDSA) is not supported. Please use AWS4-HMAC-SHA256.")
    raise InvalidArgument("x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-*, or a valid sha256 value.")


def decoded_length_of(headers: Iterable[tuple[str, str]]) -> int | None:
    """x-amz-decoded-content-length; None when it is absent.

    Raises:
        InvalidArgument: the value is no number, or the header came twice.
    """
    value = canonical_values(headers).get("x-amz-decoded-content-length")
    if value is None:
        return None
    if _LENGTH.fullmatch(value) is None:
        raise InvalidArgument("x-amz-decoded-content-length must be a number of bytes.")
    return int(value)


def trailer_names_of(headers: Iterable[tuple[str, str]]) -> frozenset[str]:
    """The trailers that x-amz-trailer announces, in lower case.

    Only checksums may be announced. Trailers go on to the origin, and other headers could be smuggled as trailers past
    `operation.classify`.

    Raises:
        InvalidRequest: the header names another trailer, or an empty one.
    """
    value = canonical_values(headers).get("x-amz-trailer")
    if value is None:
        return frozenset()
    names = frozenset(name.strip().lower() for name in value.split(","))
    if not names <= CHECKSUM_CHARS.keys():
        raise InvalidRequest("The value specified in the x-amz-trailer header is not supported.")
    return names


# The others (xxhash*) are passed on, and the origin checks them.
_HASHES: dict[str, Callable[[], Hash]] = {f"x-amz-checksum-{kind.value}": kind.begin for kind in Kind} | {
    "x-amz-checksum-sha512": sha512
}


class BodyChecksum:
    """A checksum computed as the body passes; `name` is the trailer that states the expected value."""

    __slots__ = ("_hash", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._hash = _HASHES[name]()

    def update(self, data: bytes | memoryview) -> None:
        self._hash.update(data)

    @property
    def value(self) -> str:
        """The checksum in base64, as on the wire."""
        return b64encode(self._hash.digest()).decode("ascii")

    def check(self, stated: str) -> None:
        """Raises BadDigest when the body has another checksum than `stated`."""
        if self.value != stated:
            raise BadDigest(f"The {self.name} that you specified did not match what we received.")


def body_checksum(name: str) -> BodyChecksum | None:
    """The running checksum for a trailer `name`, x-amz-checksum-*; None: it is not computed here."""
    return BodyChecksum(name) if name in _HASHES else None


def check_checksum_form(name: str, value: str) -> None:
    """Raises InvalidRequest when `value` cannot be a checksum of the kind `name`, whatever the body."""
    try:
        digest = a2b_base64(value.encode("ascii"), strict_mode=True)
    except (Base64Error, UnicodeEncodeError):
        digest = b""
    if len(digest) != _DIGEST_BYTES[name]:
        raise InvalidRequest(f"Value for {name} trailing header is invalid.")
