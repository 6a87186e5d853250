"""Verifies Signature Version 2 in a URL, which boto3 still presigns with by default. The proxy never signs so.

Source: Amazon S3 API Reference, "Signing and authenticating REST requests (AWS signature version 2)".
"""

from __future__ import annotations

import hmac
import re
from base64 import b64encode
from typing import TYPE_CHECKING

from outrider.core.auth.sigv4 import known_secret
from outrider.core.errors import AccessDenied, SignatureDoesNotMatch
from outrider.core.s3.encoding import OTHER_STORE_HEADERS, raw_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

QUERY_FORM = frozenset(("AWSAccessKeyId", "Signature"))
_OURS = QUERY_FORM | {"Expires"}

_EXPIRES = re.compile(r"[0-9]{1,15}")

# The parameters that botocore or minio count as part of the resource. A client with a shorter list is refused for the
# parameters that it leaves out, as it would be for unsigned ones.
_SIGNED = frozenset(
    ("accelerate", "acl", "analytics", "cors", "defaultObjectAcl", "delete", "encryption", "inventory", "legal-hold",
     "lifecycle", "location", "logging", "metrics", "notification", "object-lock", "partNumber", "policy",
     "replication", "requestPayment", "restore", "retention", "select", "select-type", "storageClass", "tagging",
     "torrent", "uploadId", "uploads", "versionId", "versioning", "versions", "website",
     "response-cache-control", "response-content-disposition", "response-content-encoding",
     "response-content-language", "response-content-type", "response-expires")
)  # fmt: skip

# SigV2 does not cover these parameters. They choose a part of a LIST or have no effect, and grants are checked with the
# values that were received. Any other uncovered parameter would let the holder of a URL turn it into another call.
_OPEN = frozenset(
    ("continuation-token", "delimiter", "encoding-type", "fetch-owner", "key-marker", "list-type", "marker",
     "max-keys", "max-parts", "max-uploads", "part-number-marker", "prefix", "start-after", "upload-id-marker",
     "version-id-marker", "x-id", "content-md5", "content-type")
)  # fmt: skip


def verify_url(
    *,
    method: str,
    paths: Sequence[str],
    query: Sequence[tuple[str, str]],
    headers: Sequence[tuple[str, str]],
    secret_of: Callable[[str], str | None],
    now: float,
    bucket_of_host: str | None,
) -> tuple[str, str]:
    """The access key and the signature, once the signature was verified.

    `paths` are the spellings of the path that may have been signed, `query` is all decoded pairs, `headers` are as
    received.

    Raises:
        AccessDenied: the URL is expired or incomplete, or has parameters that SigV2 cannot protect.
        InvalidAccessKeyId: `secret_of` does not know the key.
        SignatureDoesNotMatch: the signature is none of this request with this secret.
    """
    access_key, signature, expires = _claim(query)
    if _EXPIRES.fullmatch(expires) is None:
        raise AccessDenied("Invalid date (should be seconds since epoch)")
    secret_key = known_secret(secret_of, access_key)
    if now > int(expires):
        raise AccessDenied("Request has expired")
    md5, content_type = (
        ",".join(v.strip() for n, v in headers if n == name) for name in ("content-md5", "content-type")
    )
    head = f"{method}\n{md5}\n{content_type}\n{expires}\n{_amz_lines(headers, query)}"
    key, claimed = raw_bytes(secret_key), raw_bytes(signature)
    for resource in _resources(paths, query, bucket_of_host):
        expected = b64encode(hmac.digest(key, raw_bytes(head + resource), "sha1"))
        if hmac.compare_digest(expected, claimed):
            return access_key, signature
    raise SignatureDoesNotMatch


def _claim(query: Sequence[tuple[str, str]]) -> tuple[str, str, str]:
    ours: dict[str, str] = {}
    for name, value in query:
        if name in _OURS:
            if name in ours:
                raise AccessDenied(f"{name} must be given once.")
            ours[name] = value
        elif name not in _SIGNED and name not in _OPEN and not name.lower().startswith("x-amz-"):
            raise AccessDenied(f"Signature Version 2 does not protect the parameter {name}. Use AWS4-HMAC-SHA256.")
    if len(ours) != len(_OURS):
        raise AccessDenied("Query-string authentication requires the Signature, Expires and AWSAccessKeyId parameters")
    return ours["AWSAccessKeyId"], ours["Signature"], ours["Expires"]


def _amz_lines(headers: Sequence[tuple[str, str]], query: Sequence[tuple[str, str]]) -> str:
    values: dict[str, list[str]] = {}
    for name, value in headers:
        if name.startswith("x-amz-"):
            values.setdefault(name, []).append(value.strip())
        elif name.startswith(OTHER_STORE_HEADERS):
            raise AccessDenied(f"Signature Version 2 does not protect the header {name}. Use AWS4-HMAC-SHA256.")
    # boto moves the x-amz-* headers that it signs into the URL. A client may send them as headers, too.
    for name, value in query:
        lower = name.lower()
        if lower.startswith("x-amz-"):
            if "\n" in value:
                raise AccessDenied(f"The parameter {name} holds a line break, which would pass for another header.")
            if values.get(lower) != [value]:
                values.setdefault(lower, []).append(value)
    return "".join([f"{name}:{','.join(values[name])}\n" for name in sorted(values)])


def _resources(paths: Sequence[str], query: Sequence[tuple[str, str]], bucket_of_host: str | None) -> Iterator[str]:
    signed = sorted((pair for pair in query if pair[0] in _SIGNED), key=lambda pair: pair[0])
    tails = ["&".join([f"{name}={value}" if value else name for name, value in signed])]
    if any(not value for _, value in signed):
        tails.append(
            "&".join([f"{name}={value}" for name, value in signed])
        )  # some clients sign `acl=` in place of `acl`
    for path in dict.fromkeys(paths):
        full = path if bucket_of_host is None else f"/{bucket_of_host}{path}"
        for tail in tails:
            suffix = f"?{tail}" if tail else ""
            yield full + suffix
            # botocore signs a bare bucket with a slash at its end, and sends it without.
            if full.count("/") == 1 and full != "/":
                yield f"{full}/{suffix}"
