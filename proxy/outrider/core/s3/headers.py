"""Header filters: which headers go up to the origin, which go down to the client, and which are kept with a version."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from outrider.core.errors import InvalidRequest
from outrider.core.model import Headers, shared_headers
from outrider.core.s3.encoding import STORE_HEADERS

HOP_BY_HOP = frozenset(
    ("close", "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
     "trailer", "transfer-encoding", "upgrade")
)  # fmt: skip
"""Headers for one connection only, which each side sets for itself. Source: RFC 9110 section 7.6.1."""


# `date` and `server` are set anew by the proxy.
_NOT_PASSED_DOWN = HOP_BY_HOP | {"date", "server"}


# These describe one reply, and not the version.
_NOT_REPLAYED = _NOT_PASSED_DOWN | frozenset(
    ("content-length", "content-range", "x-amz-request-id", "x-amz-id-2", "age", "set-cookie", "alt-svc", "via",
     "access-control-allow-origin", "access-control-allow-methods", "access-control-allow-headers",
     "access-control-expose-headers", "access-control-max-age", "access-control-allow-credentials",
     "x-amz-mp-parts-count", "x-amz-request-charged")
)  # fmt: skip


CHECKSUM_PREFIX = "x-amz-checksum-"


def replayable(headers: Headers) -> Headers:
    """The headers of an origin's reply that belong to the version: each later answer repeats them."""
    return shared_headers([pair for pair in headers if pair[0] not in _NOT_REPLAYED])


# Requests with `origin` and `x-origin` are forwarded, and preflights too. The origin is asked for the encoding
# `identity`, which each client accepts.
_VARY_HARMLESS = frozenset(
    ("origin", "x-origin", "access-control-request-method", "access-control-request-headers", "accept-encoding")
)  # fmt: skip


def varies_with_clients(headers: Headers) -> bool:
    """Whether the reply's Vary says that another client may get other bytes: such a reply is not kept.

    The reply to a fill holds for all clients if it varies only with headers that the proxy sets itself, and with those
    that no request has which the cache answers. Source: RFC 9111 section 4.1; `*` never matches.
    """
    if "vary" not in dict(headers):
        return False
    names = {part.strip().lower() for name, value in headers if name == "vary" for part in value.split(",")}
    return any(
        name
        and name not in _VARY_HARMLESS
        and name not in _NOT_PASSED_UP
        and not name.startswith(_NOT_PASSED_UP_PREFIXES)
        for name in names
    )


def forbids_storing(headers: Headers) -> bool:
    """Whether the reply's Cache-Control says `no-store`: no cache may keep it.

    The other directives say for how long it may be kept, which is the matter of `freshness`, or for whom: that is the
    matter of grants. Google's buckets say `private` of each object. Source: RFC 9111 section 5.2.2.
    """
    if "cache-control" not in dict(headers):
        return False
    said = (part for name, value in headers if name == "cache-control" for part in value.split(","))
    return any(part.strip().lower() == "no-store" for part in said)


def passed_down(headers: Headers) -> Headers:
    """The headers of an origin's reply that go to the client of a forwarded request."""
    return tuple([pair for pair in headers if pair[0] not in _NOT_PASSED_DOWN])


def wants_checksums(headers: Mapping[str, str]) -> bool:
    """Whether the reply must have the checksums of the whole object: the client asks for them, and for no part."""
    return "range" not in headers and headers.get("x-amz-checksum-mode", "").upper() == "ENABLED"


def without_checksums(headers: Headers) -> Headers:
    """The headers without the checksums of the whole object.

    A reply with a part of the object must not carry them, nor a reply whose client did not ask: SDKs would check them.
    """
    return tuple([pair for pair in headers if not pair[0].startswith(CHECKSUM_PREFIX)])


# These are signed anew, framed anew, or meant for this hop alone.
_NOT_PASSED_UP = HOP_BY_HOP | frozenset(
    ("authorization", "content-length", "expect", "host", "x-amz-content-sha256", "x-amz-date", "date",
     "x-amz-decoded-content-length", "x-amz-security-token", "x-amz-trailer",
     # An origin, or a proxy before it, may trust these from a proxy: they name a client, a host, a path or a method.
     "forwarded", "x-real-ip", "x-original-url", "x-rewrite-url", "x-http-method", "x-http-method-override",
     "x-method-override")
)  # fmt: skip
# `x-outrider-`: between the members of a cluster. An Outrider behind this one must not believe a client's.
_NOT_PASSED_UP_PREFIXES = ("x-forwarded-", "x-outrider-")


# HTTP's own headers and those of traces; and of SDKs, which origins do not read.
_KNOWN = frozenset(
    ("authorization", "baggage", "cache-control", "connection", "date", "expect", "expires", "host", "origin", "pragma",
     "range", "referer", "traceparent", "tracestate", "transfer-encoding", "user-agent", "x-origin")
)  # fmt: skip
_KNOWN_PREFIXES = (*STORE_HEADERS, "accept", "access-control-request-", "amz-sdk-", "content-", "if-")


def known(headers: Headers) -> Headers:
    """The headers of a request whose meaning is known here. Another one may name what no grant was checked for
    (OpenStack Swift's `X-Copy-From`), or write beside the key (`Pic-Operations` of COS)."""
    return tuple(pair for pair in headers if pair[0] in _KNOWN or pair[0].startswith(_KNOWN_PREFIXES))


# Bytes of the wire that are no UTF-8 are kept as surrogate escapes.
_SURROGATE = re.compile("[\ud800-\udfff]")


_USER_METADATA = "x-amz-meta-"


def passed_up(headers: Headers) -> Headers:
    """The headers of a client's request that go to the origin. `aws-chunked` is not among them: the body was decoded.

    Raises:
        InvalidRequest: a value holds bytes that are no UTF-8. The HTTP library does not send such bytes as they stand,
            so the signature would cover other bytes than those that arrive.
    """
    passed: list[tuple[str, str]] = []
    for name, value in headers:
        if name in _NOT_PASSED_UP or name.startswith(_NOT_PASSED_UP_PREFIXES):
            continue
        # CGI and Ceph's gateway read `_` as `-`, and no signature and no grant covered an `x_amz_copy_source`.
        if "_" in name and not name.startswith(_USER_METADATA):
            continue
        if name == "content-encoding":
            value = without_aws_chunked(value)
            if not value:
                continue
        # A User-Agent is neither stored nor signed.
        if name != "user-agent" and not value.isascii() and _SURROGATE.search(value):
            raise InvalidRequest(f"The header {name} holds bytes that are no UTF-8: encode it, as RFC 2047 has it.")
        passed.append((name, value))
    return tuple(passed)


def without_aws_chunked(content_encoding: str) -> str:
    """The encoding of the object itself: S3 stores `aws-chunked,gzip` as `gzip`. Other values stay as they are."""
    if "aws-chunked" not in content_encoding.lower():
        return content_encoding
    parts: Sequence[str] = [part.strip() for part in content_encoding.split(",")]
    return ",".join(part for part in parts if part and part.lower() != "aws-chunked")


# The characters that botocore lets through: those of a token (RFC 9110 section 5.6.2) and the comma. botocore warns
# about names of more than 50 characters, and sends them.
_APP = re.compile(r"(?:^| )app/([!#$%&'*+\-.^_`|~,0-9A-Za-z]{1,128})(?: |$)")


def app_of(user_agent: str) -> str:
    """The application that the user named in a User-Agent (`AWS_SDK_UA_APP_ID`); empty: none.

    Source: AWS SDKs and Tools Reference Guide, "Application ID".
    """
    found = _APP.search(user_agent)
    return found[1] if found else ""
