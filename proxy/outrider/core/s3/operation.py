"""What an S3 request means: who it touches, whether the cache may answer it, what it makes the catalog forget.

Unknown means forward: a call invented tomorrow reaches the origin untouched. Source: S3 API reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from urllib.parse import unquote, unquote_to_bytes

from outrider.core.errors import BadRequest, InvalidBucketName
from outrider.core.model import Headers, ObjectRef, shared_text
from outrider.core.s3 import conditions, ranges
from outrider.core.s3.conditions import CONDITIONALS
from outrider.core.s3.encoding import OF_STORES, OTHER_STORES, parse_query

Query = tuple[tuple[str, str], ...]


class Kind(Enum):
    """Who answers a request: the cache (GET and HEAD of plain objects), the proxy itself (CONTROL, see
    `http.control`), or the origin (FORWARD: all else)."""

    GET = "get"
    HEAD = "head"
    CONTROL = "steer"  # the value is a label of metrics, and stays
    FORWARD = "forward"


class Forgets(Enum):
    """What a forwarded request may change, and so what the catalog forgets before and after it."""

    NOTHING = "nothing"
    KEY = "key"
    KEYS_IN_BODY = "keys in body"
    BUCKET = "bucket"


@dataclass(frozen=True, slots=True)
class Operation:
    """A request, understood. `bucket` None: the service itself; `key` empty: the bucket. `query` lacks signatures."""

    kind: Kind
    method: str
    bucket: str | None
    key: str
    query: Query
    forgets: Forgets = Forgets.NOTHING
    sources: tuple[ObjectRef, ...] = ()
    """Objects that the request reads on the side (copy, rename): the client needs a grant on these too."""
    renames: bool = False
    bare: bool = False
    """`/bucket` without the slash after it. S3 takes both alike, some stores do not (SeaweedFS: OPTIONS)."""

    @property
    def ref(self) -> ObjectRef:
        assert self.bucket is not None
        return ObjectRef(self.bucket, self.key)


# Looser than today's rule for new buckets (lower case, 3-63): stores keep older and other names.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}", re.ASCII)

_KEY_BYTES_MAX = 1024

# Query parameters that carry a signature (SigV4, SigV2); the proxy's own replaces them.
_SIGNATURE_QUERY = frozenset(
    ("x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-expires", "x-amz-signedheaders", "x-amz-signature",
     "x-amz-security-token", "x-amz-content-sha256", "awsaccesskeyid", "signature", "expires")
)  # fmt: skip
_SIGV4_MARK, _SIGV2_MARK = "x-amz-signature", "awsaccesskeyid"

# rclone and other SDK v2 clients name the operation in the query; it changes nothing.
MEANINGLESS_QUERY = frozenset(("x-id",))

# Headers on a GET that leave its answer what it is; any other x-amz-* header means a call that is not plain.
_PLAIN_AMZ = frozenset(
    ("x-amz-date", "x-amz-content-sha256", "x-amz-security-token", "x-amz-checksum-mode", "x-amz-user-agent",
     "x-amz-api-version", "x-amz-optional-object-attributes")
)  # fmt: skip

# `x-amz-optional-object-attributes` changes what a LIST tells.
_PLAIN_AMZ_OF_LIST = _PLAIN_AMZ - {"x-amz-optional-object-attributes"}

LIST_QUERY = frozenset(
    ("list-type", "prefix", "delimiter", "max-keys", "marker", "continuation-token", "start-after", "encoding-type",
     "fetch-owner", "versions", "uploads", "key-marker", "version-id-marker", "upload-id-marker", "max-uploads", "x-id")
)  # fmt: skip
"""What the lists of a bucket (objects, versions, uploads) take; `x-id` means nothing."""

# Some stores take them for their own, and no grant would have been asked for what they name.
_OTHER_SOURCES = frozenset(f"{prefix}copy-source" for prefix in OTHER_STORES)

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def classify(method: str, target: str, headers: Headers, domains: Iterable[str] = ()) -> Operation:
    """Understand a request from its method, raw target and headers (names in lower case).

    Raises:
        BadRequest: the target is not a path (absolute form, `*`), there is not exactly one Host header, or another
            store's header names an object to copy.
        InvalidBucketName: it names a bucket that cannot be.
    """
    path, _, raw_query = target.partition("?")
    if not path.startswith("/"):
        raise BadRequest("The request target must be a path.")
    hosts = [value for name, value in headers if name == "host"]
    if len(hosts) > 1:
        raise BadRequest("More than one Host header.")
    host_bucket = bucket_of_host(hosts[0], domains) if hosts else None
    if host_bucket is None:
        first, slash, rest = path[1:].partition("/")
        bucket, key = _decoded(first), _decoded(rest)
        bare = not slash
    else:
        bucket, key, bare = host_bucket, _decoded(path[1:]), False
    query = without_signature(tuple(parse_query(raw_query)))
    if not bucket and path != "/":
        raise InvalidBucketName
    if not bucket:
        return Operation(Kind.FORWARD, method, None, "", query)
    if not is_bucket_name(bucket):
        raise InvalidBucketName
    bucket = shared_text(bucket)  # kept with each of its objects
    kind = _kind(method, key, query, headers)
    forgets, sources, renames = _effects(method, bucket, key, query, headers)
    return Operation(kind, method, bucket, key, query, forgets, sources, renames, bare)


CONTROL_BUCKET = "_outrider"
"""No S3 allows this name: what is asked of it is asked of the proxy."""


def control_request_of(method: str, target: str, host: str, domains: Iterable[str] = ()) -> Operation | None:
    """The request, if it is for the proxy itself; None: for the origin."""
    path, _, raw_query = target.partition("?")
    first, slash, rest = path[1:].partition("/")
    # In virtual-host style the path is a key, and a key may be called anything.
    if _decoded(first) != CONTROL_BUCKET or bucket_of_host(host, domains) is not None:
        return None
    query = without_signature(tuple(parse_query(raw_query)))
    return Operation(Kind.CONTROL, method, CONTROL_BUCKET, _decoded(rest), query, bare=not slash)


def bucket_of_host(host: str, domains: Iterable[str]) -> str | None:
    """The bucket of a virtual-host style request to `bucket.DOMAIN[:port]`; None for path style."""
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    for domain in domains:
        if name.lower().endswith("." + domain.lower()):
            return name[: -len(domain) - 1]
    return None


def without_signature(query: Query) -> Query:
    """The query without a signature of either kind. A lone `Expires` is no signature and stays."""
    names = {name.lower() for name, _ in query}
    if not names & {_SIGV4_MARK, _SIGV2_MARK}:
        return query
    return tuple((name, value) for name, value in query if name.lower() not in _SIGNATURE_QUERY)


def _decoded(raw: str) -> str:
    if "%" not in raw and raw.isascii():
        return raw
    # The server hands over bytes beyond ASCII as surrogate escapes or as text; both are UTF-8 on the wire.
    return unquote_to_bytes(raw.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")


def _kind(method: str, key: str, query: Query, headers: Headers) -> Kind:
    if method not in ("GET", "HEAD") or not key:
        return Kind.FORWARD
    if any(name not in MEANINGLESS_QUERY for name, _ in query):
        return Kind.FORWARD
    # What stores read differently, the origin reads itself.
    if not conditions.are_plain(headers):
        return Kind.FORWARD
    # A folder's own key is served whole by some, whatever the conditions say.
    if key.endswith("/") and any(name in conditions.CONDITIONALS or name == "range" for name, _ in headers):
        return Kind.FORWARD
    for name, value in headers:
        # A HEAD's Range is ignored by some.
        if name == "range" and (method == "HEAD" or ranges.parse(value) is None):
            return Kind.FORWARD
        # CORS answers vary with Origin, and stores differ on If-Range. SSE-C, requester pays, expected owner: the
        # origin must judge each time.
        if name in ("origin", "if-range") or (name.startswith(OF_STORES) and name not in _PLAIN_AMZ):
            return Kind.FORWARD
    return Kind.GET if method == "GET" else Kind.HEAD


def is_warming_head(operation: Operation, headers: Headers) -> bool:
    """A HEAD of an object's first byte: other caches are warmed by it, too, and no client asks so for its own sake."""
    return (
        operation.method == "HEAD"
        and operation.key != ""
        and not {name for name, _ in operation.query} - MEANINGLESS_QUERY
        and dict(headers).get("range") == "bytes=0-0"
    )


def is_bucket_name(name: str) -> bool:
    return _BUCKET.fullmatch(name) is not None


def is_plain_list(operation: Operation, headers: Headers) -> bool:
    """A LIST of a bucket whose answer hangs on nothing but its query."""
    if operation.method != "GET" or operation.bucket is None or operation.key:
        return False
    if not {name for name, _ in operation.query} <= LIST_QUERY:
        return False
    return all(
        name in _PLAIN_AMZ_OF_LIST or not (name.startswith(OF_STORES) or name in ("origin", "range", *CONDITIONALS))
        for name, _ in headers
    )


def _effects(
    method: str, bucket: str, key: str, query: Query, headers: Headers
) -> tuple[Forgets, tuple[ObjectRef, ...], bool]:
    """What it may change, what it reads on the side, and whether the side object is taken away (rename)."""
    if method in SAFE_METHODS:
        return Forgets.NOTHING, (), False
    sources = []
    renames = False
    for name, value in headers:
        if name in ("x-amz-copy-source", "x-amz-rename-source"):
            sources.append(_source(value, bucket))
        if name == "x-amz-rename-source":
            # Within one bucket, and so without its name: a folder may look like one.
            sources.append(ObjectRef(bucket, unquote(value, errors="surrogateescape").removeprefix("/")))
            renames = True
        if name in _OTHER_SOURCES:
            raise BadRequest(f"{name} is not understood here: write x-amz-copy-source.")
    if key:
        return Forgets.KEY, tuple(sources), renames
    if method == "POST" and any(name == "delete" for name, _ in query):
        return Forgets.KEYS_IN_BODY, tuple(sources), renames
    # A bucket's own settings can change any answer of it.
    return Forgets.BUCKET, tuple(sources), renames


def is_preflight(method: str, headers: Headers) -> bool:
    """A browser's question before a CORS request: never signed, and answered from the bucket's CORS rules alone."""
    names = {name for name, _ in headers}
    return method == "OPTIONS" and names >= {"origin", "access-control-request-method"}


_PREFLIGHT = ("origin", "access-control-request-method", "access-control-request-headers")


def preflight_alone(operation: Operation, headers: Headers) -> tuple[Operation, Headers]:
    """What of a preflight goes up, whoever sent it, under the proxy's own signature: the question, and no more."""
    return replace(operation, query=()), tuple(pair for pair in headers if pair[0] in _PREFLIGHT)


def _source(value: str, bucket: str) -> ObjectRef:
    path = unquote(value.partition("?")[0], errors="surrogateescape")
    if path.startswith("/"):
        path = path[1:]
    name, slash, key = path.partition("/")
    return ObjectRef(name, key) if slash else ObjectRef(bucket, path)


def ref_of(url: str) -> ObjectRef | None:
    """The object of s3://BUCKET/KEY, where KEY stands as it is, without escapes; None: it is no such URL."""
    bucket, _, key = url.removeprefix("s3://").partition("/")
    if not url.startswith("s3://") or not key or _BUCKET.fullmatch(bucket) is None:
        return None
    try:
        whole = len(key.encode("utf-8", "surrogateescape")) <= _KEY_BYTES_MAX
    except UnicodeEncodeError:  # a surrogate that escapes nothing
        return None
    return ObjectRef(bucket, key) if whole else None
