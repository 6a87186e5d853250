"""Signed requests and uploads: AWS's examples, botocore's, strategies, and uploads by hand with one fault."""

from __future__ import annotations

import hmac
import zlib
from base64 import b64encode
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import strategies as st

from outrider.core.auth.sigv4 import Credentials, SigningKeys
from outrider.core.auth.verification import Identity, SignedRequest, verify
from outrider.core.s3.aws_chunked import ChunkSigning
from outrider.core.s3.encoding import amz_date_seconds, encode_query, parse_query
from tests.support.bucket import REGION

if TYPE_CHECKING:
    from collections.abc import Iterable


AWS = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
KEYS = SigningKeys()
EMPTY = sha256(b"").hexdigest()
HOST = "127.0.0.1:9480"
AT = 1369353600.0  # 20130524T000000Z, the time of all of AWS's examples

any_text = st.text(st.characters(exclude_categories=()), max_size=40)
keys_of_objects = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)
awkward_keys = st.one_of(
    keys_of_objects,
    st.lists(st.sampled_from(["..", ".", "", "a b", "+", "%", "%2F", "~", "!(')*", "é", "日本", "=&?#", "\n"])).map(
        "/".join
    ),
)
queries = st.lists(
    st.tuples(st.text(min_size=1, max_size=8).filter(lambda n: n.lower()[:6] != "x-amz-"), st.text(max_size=8))
)
queries = queries.filter(lambda pairs: not {name for name, _ in pairs} & {"AWSAccessKeyId", "Signature"})
header_values = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20)


def secret_of(access_key: str) -> str | None:
    return {AWS.access_key: AWS.secret_key, "minio/team/7": "hush"}.get(access_key)


def ask(request: SignedRequest, now: float = AT, **more: Any) -> Identity | None:
    return verify(request, secret_of=secret_of, now=now, keys=KEYS, **more)


def of_boto(request: AWSRequest) -> tuple[SignedRequest, float]:
    """The request that botocore would send, as the proxy parses it, and its time."""
    url = urlsplit(request.url)
    headers = [("host", url.netloc), *((name.lower(), value) for name, value in request.headers.items())]
    wire = SignedRequest(request.method, url.path, url.query, tuple(headers))
    dates = [v for n, v in (*headers, *parse_query(url.query)) if n.lower() == "x-amz-date"]
    at = amz_date_seconds(dates[0])
    assert at is not None
    return wire, at


def signed_by_boto(
    method: str = "GET",
    path: str = "/bucket/key",
    query: str = "",
    headers: dict[str, str] | None = None,
    body: bytes = b"",
    presign_s: int | None = None,
) -> tuple[SignedRequest, float]:
    url = f"http://{HOST}{path}" + (f"?{query}" if query else "")
    request = AWSRequest(method, url, headers or {}, body)
    credentials = BotoCredentials(AWS.access_key, AWS.secret_key)
    auth = S3SigV4Auth if presign_s is None else S3SigV4QueryAuth
    auth(credentials, "s3", "eu-west-1", *(() if presign_s is None else (presign_s,))).add_auth(request)
    return of_boto(request)


def with_header(request: SignedRequest, name: str, value: str | None) -> SignedRequest:
    cached = tuple(pair for pair in request.headers if pair[0] != name)
    return replace(request, headers=cached if value is None else (*cached, (name, value)))


def published(method: str, path: str, signed: str, signature: str, query: str = "", **headers: str) -> SignedRequest:
    """A request of AWS's examples, in the bucket `examplebucket`, with the Authorization header that AWS prints."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    names["host"] = "examplebucket.s3.amazonaws.com"
    names["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={AWS.access_key}/20130524/us-east-1/s3/aws4_request,"
        f"SignedHeaders={signed},Signature={signature}"
    )
    names.setdefault("x-amz-content-sha256", EMPTY)
    return SignedRequest(method, path, query, tuple(names.items()))


EXAMPLES = {
    "GET object": published(
        "GET",
        "/test.txt",
        "host;range;x-amz-content-sha256;x-amz-date",
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        range="bytes=0-9",
        x_amz_date="20130524T000000Z",
    ),
    "PUT object": published(
        "PUT",
        "/test$file.text",
        "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        date="Fri, 24 May 2013 00:00:00 GMT",
        x_amz_date="20130524T000000Z",
        x_amz_storage_class="REDUCED_REDUNDANCY",
        x_amz_content_sha256="44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
    ),
    "GET lifecycle": published(
        "GET",
        "/",
        "host;x-amz-content-sha256;x-amz-date",
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        query="lifecycle",
        x_amz_date="20130524T000000Z",
    ),
    "list": published(
        "GET",
        "/",
        "host;x-amz-content-sha256;x-amz-date",
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        query="max-keys=2&prefix=J",
        x_amz_date="20130524T000000Z",
    ),
}


PRESIGNED_EXAMPLE = SignedRequest(
    "GET",
    "/test.txt",
    "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
    "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
    "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404",
    (("host", "examplebucket.s3.amazonaws.com"),),
)


def presigned_by_hand(headers: dict[str, str], payload_hash: str, query: str = "") -> SignedRequest:
    """A URL that signs headers and a payload, which botocore never makes."""
    names = ";".join(sorted(headers))
    pairs = [
        *parse_query(query),
        ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
        ("X-Amz-Credential", f"{AWS.access_key}/20130524/r/s3/aws4_request"),
        ("X-Amz-Date", "20130524T000000Z"),
        ("X-Amz-Expires", "60"),
        ("X-Amz-SignedHeaders", names),
    ]
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    text = f"PUT\n/b/k\n{encode_query(pairs)}\n{lines}\n{names}\n{payload_hash}"
    key = SigningKeys().get(AWS.secret_key, "20130524", "r")
    digest = sha256(text.encode()).hexdigest()
    to_sign = f"AWS4-HMAC-SHA256\n20130524T000000Z\n20130524/r/s3/aws4_request\n{digest}"
    pairs.append(("X-Amz-Signature", hmac.new(key, to_sign.encode(), sha256).hexdigest()))
    return SignedRequest("PUT", "/b/k", encode_query(pairs), tuple(headers.items()))


GOOD = (
    f"AWS4-HMAC-SHA256 Credential={AWS.access_key}/20130524/r/s3/aws4_request, SignedHeaders=host, Signature={'0' * 64}"
)


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
        super().__init__(BotoCredentials(*keys), "s3", REGION)
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
