"""Hand-made uploads, correct or with one fault: signed heads, aws-chunked bodies, trailers."""

from __future__ import annotations

import zlib
from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from outrider.core.auth.sigv4 import SigningKeys
from outrider.core.s3.aws_chunked import ChunkSigning
from tests.support.bucket import REGION

if TYPE_CHECKING:
    from collections.abc import Iterable

Headers = list[tuple[str, str]]

UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"


def _reflected_crc(data: bytes, polynomial: int, width: int) -> bytes:
    """Computed bit by bit, so that it shares no table with the code under test."""
    everything = (1 << width) - 1
    crc = everything
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (polynomial if crc & 1 else 0)
    return (crc ^ everything).to_bytes(width // 8, "big")


def checksum(name: str, body: bytes) -> str:
    """The value of `x-amz-checksum-<name>`. Source of the reflected polynomials: RFC 3720 appendix B, NVMe 5.2.1.3."""
    digests = {
        "crc32": lambda: zlib.crc32(body).to_bytes(4, "big"),
        "crc32c": lambda: _reflected_crc(body, 0x82F63B78, 32),
        "crc64nvme": lambda: _reflected_crc(body, 0x9A6C9329AC4BC9B5, 64),
        "sha256": lambda: sha256(body).digest(),
    }
    return b64encode(digests[name]()).decode()


class _Auth(S3SigV4Auth):  # type: ignore[misc] # botocore has no types
    """A signer that takes the payload hash as given and does not look at the payload."""

    def __init__(self, keys: tuple[str, str], payload_hash: str) -> None:
        super().__init__(Credentials(*keys), "s3", REGION)
        self._payload_hash = payload_hash

    def payload(self, request: Any) -> str:
        return self._payload_hash


def signed_head(
    method: str, endpoint: str, target: str, keys: tuple[str, str], headers: Iterable[tuple[str, str]] = (),
    payload_hash: str | None = None,
) -> Headers:  # fmt: skip
    """The headers (Host included) of a signed request. `payload_hash` None: the hash of an empty body."""
    request = AWSRequest(method, endpoint + target, dict(headers))
    _Auth(keys, payload_hash or sha256(b"").hexdigest()).add_auth(request)
    return [("host", endpoint.partition("//")[2]), *((name.lower(), value) for name, value in request.headers.items())]


@dataclass(frozen=True, slots=True)
class Chunked:
    """An aws-chunked body. `form` is its x-amz-content-sha256. `trailer` is (name, value); None: a body without a
    checksum."""

    body: bytes
    form: str = UNSIGNED_TRAILER
    trailer: tuple[str, str] | None = None
    chunk_bytes: int = 16 * 1024

    def headers(self) -> Headers:
        headers = [("x-amz-decoded-content-length", str(len(self.body))), ("content-encoding", "aws-chunked")]
        if self.trailer is not None:
            headers.append(("x-amz-trailer", self.trailer[0]))
        return headers

    def encode(self, signing: ChunkSigning | None = None) -> bytes:
        out = bytearray()
        previous = "" if signing is None else signing.seed_signature
        cuts = range(0, len(self.body), self.chunk_bytes)
        for chunk in (*(self.body[at : at + self.chunk_bytes] for at in cuts), b""):
            extension = ""
            if signing is not None:
                previous = signing.chunk_signature(previous, sha256(chunk).hexdigest())
                extension = f";chunk-signature={previous}"
            out += f"{len(chunk):x}{extension}\r\n".encode() + chunk + (b"\r\n" if chunk else b"")
        if self.trailer is not None:
            out += f"{self.trailer[0]}:{self.trailer[1]}\r\n".encode()
            if signing is not None:
                out += (
                    f"x-amz-trailer-signature:{signing.trailer_signature(previous, dict([self.trailer]))}\r\n".encode()
                )
        return bytes(out + b"\r\n")


def chunk_signing(head: Headers, secret_key: str) -> ChunkSigning:
    """The context with which the chunks of a request with this head are signed."""
    named = dict(head)
    signature = named["authorization"].rpartition("Signature=")[2]
    date = named["x-amz-date"]
    scope = f"{date[:8]}/{REGION}/s3/aws4_request"
    return ChunkSigning(SigningKeys().get(secret_key, date[:8], REGION), scope, date, signature)
