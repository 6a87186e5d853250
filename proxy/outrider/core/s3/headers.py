"""Which headers pass the proxy, up to the origin and down to the client, and which are kept with a version."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from outrider.core.errors import InvalidRequest
from outrider.core.model import Headers, shared_headers

HOP_BY_HOP = frozenset(
    ("close", "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
     "trailer", "transfer-encoding", "upgrade")
)  # fmt: skip
"""RFC 9110 section 7.6.1, framing that each side does for itself among them."""


# With names that each server gives anew.
_NOT_PASSED_DOWN = HOP_BY_HOP | {"date", "server"}


# Of one reply only, not of the version.
_NOT_REPLAYED = _NOT_PASSED_DOWN | frozenset(
    ("content-length", "content-range", "x-amz-request-id", "x-amz-id-2", "age", "set-cookie", "alt-svc", "via",
     "access-control-allow-origin", "access-control-allow-methods", "access-control-allow-headers",
     "access-control-expose-headers", "access-control-max-age", "access-control-allow-credentials", "vary",
     "x-amz-mp-parts-count", "x-amz-request-charged")
)  # fmt: skip


CHECKSUM_PREFIX = "x-amz-checksum-"


def replayable(headers: Headers) -> Headers:
    """What of an origin's reply belongs to the version, and is sent again with each later answer."""
    return shared_headers((name, value) for name, value in headers if name not in _NOT_REPLAYED)


def passed_down(headers: Headers) -> Headers:
    """What of an origin's reply goes to the client of a forwarded request."""
    return tuple((name, value) for name, value in headers if name not in _NOT_PASSED_DOWN)


def asks_checksums(headers: Mapping[str, str]) -> bool:
    """Whether the reply shall tell the checksums of the whole object: asked for, and not a part."""
    return "range" not in headers and headers.get("x-amz-checksum-mode", "").upper() == "ENABLED"


def without_checksums(headers: Headers) -> Headers:
    """A checksum of the whole object must not stand on a part of it, nor where nobody asked: SDKs would check it."""
    return tuple((name, value) for name, value in headers if not name.startswith(CHECKSUM_PREFIX))


# Signed anew, framed anew, or spoken to this hop alone.
_NOT_PASSED_UP = HOP_BY_HOP | frozenset(
    ("authorization", "content-length", "expect", "host", "x-amz-content-sha256", "x-amz-date", "date",
     "x-amz-decoded-content-length", "x-amz-security-token", "x-amz-trailer",
     # What an origin, or a proxy before it, may believe of a proxy: who asks, which host, path or method he meant.
     "forwarded", "x-real-ip", "x-original-url", "x-rewrite-url", "x-http-method", "x-http-method-override",
     "x-method-override")
)  # fmt: skip


# As bytes of the wire stand that are no UTF-8.
_SURROGATE = re.compile("[\ud800-\udfff]")


_USER_METADATA = "x-amz-meta-"


def passed_up(headers: Headers) -> Headers:
    """What of a client's request goes to the origin of a forwarded one; `aws-chunked` is undone, so not named.

    Raises InvalidRequest: a value holds bytes that are no UTF-8. Our HTTP library sends none such, so what would be
    signed is not what would arrive.
    """
    cached: list[tuple[str, str]] = []
    for name, value in headers:
        if name in _NOT_PASSED_UP or name.startswith("x-forwarded-"):
            continue
        # CGI, and Ceph's gateway, take `_` for `-`: neither signature nor grant saw an `x_amz_copy_source`.
        if "_" in name and not name.startswith(_USER_METADATA):
            continue
        if name == "content-encoding":
            value = without_aws_chunked(value)
            if not value:
                continue
        # Nobody stores, or signs, what a client calls itself.
        if name != "user-agent" and not value.isascii() and _SURROGATE.search(value):
            raise InvalidRequest(f"The header {name} holds bytes that are no UTF-8: encode it, as RFC 2047 has it.")
        cached.append((name, value))
    return tuple(cached)


def without_aws_chunked(content_encoding: str) -> str:
    """The encoding that the object itself has: `aws-chunked,gzip` is stored as `gzip`. Any other is stored as it is."""
    if "aws-chunked" not in content_encoding.lower():
        return content_encoding
    parts: Sequence[str] = [part.strip() for part in content_encoding.split(",")]
    return ",".join(part for part in parts if part and part.lower() != "aws-chunked")
