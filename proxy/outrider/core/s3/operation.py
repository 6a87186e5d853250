"""Classifies S3 requests: the object or bucket that a request names, how far it reaches beyond that, whether the cache
may answer it, and which names the version cache must forget because of it.

A request that is not known is forwarded, so that new S3 calls reach the origin unchanged. Source: S3 API reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from urllib.parse import unquote, unquote_to_bytes

from outrider.core.errors import BadRequest, InvalidBucketName, KeyTooLong
from outrider.core.model import Headers, ObjectRef, is_too_long, shared_text
from outrider.core.s3 import conditions, ranges
from outrider.core.s3.conditions import CONDITIONALS
from outrider.core.s3.encoding import OTHER_STORE_HEADERS, STORE_HEADERS, parse_query
from outrider.core.s3.reach import LIST_QUERY, Reach, reach_of, reach_of_fields

Query = tuple[tuple[str, str], ...]


class OperationKind(Enum):
    """The part that answers a request: the cache (GET and HEAD of plain objects), the proxy itself (CONTROL, see
    `http.control`), or the origin (FORWARD: all else)."""

    GET = "get"
    HEAD = "head"
    CONTROL = "steer"  # the value is a label of metrics, and stays
    FORWARD = "forward"


class ForgetScope(Enum):
    """The names that a forwarded request may change: the version cache forgets them before and after it."""

    NOTHING = "nothing"
    KEY = "key"
    KEYS_IN_BODY = "keys in body"
    BUCKET = "bucket"


@dataclass(frozen=True, slots=True)
class Operation:
    """A classified request. `bucket` None: the request is for the service; `key` empty: for the bucket. `query` holds
    no signature."""

    kind: OperationKind
    method: str
    bucket: str | None
    key: str
    query: Query
    forgets: ForgetScope = ForgetScope.NOTHING
    sources: tuple[ObjectRef, ...] = ()
    """Other objects that the request reads (copy, rename): the client needs a grant on these, too."""
    renames: bool = False
    reach: Reach = Reach.NAMED
    reaches_by: str = ""
    """The part of the request that makes it reach beyond its names."""
    bare: bool = False
    """The path is `/bucket` without a slash after it. S3 treats both forms alike; some stores do not (SeaweedFS:
    OPTIONS)."""

    @property
    def creates(self) -> bool:
        """Whether it makes the object `ref`, once the origin answers that it has: PutObject and CopyObject, the upload
        of a form, CompleteMultipartUpload, a rename."""
        is_write = self.forgets is ForgetScope.KEY and self.method in ("PUT", "POST")
        return is_write and {name for name, _ in self.query} <= _CREATING_QUERY

    @property
    def ref(self) -> ObjectRef:
        assert self.bucket is not None
        return ObjectRef(self.bucket, self.key)


# Looser than S3's rule for new buckets (lower case, 3 to 63 characters): stores have older and other names. Ceph's
# gateway names another tenant's bucket `tenant:bucket`, and one of no tenant `:bucket`. An address before the colon is
# a host with its port, written by mistake.
_BUCKET = re.compile(r"(?!(?:[0-9]+\.){3}[0-9]+:)(?:[A-Za-z0-9._-]{0,255}:)?[A-Za-z0-9][A-Za-z0-9._-]{1,254}", re.ASCII)

# A name or an address, and a port. `tenant:bucket.DOMAIN` is none: no request may be for another bucket than it names.
_HOST = re.compile(r"(?:[^:]*|\[[^\]]*\])(?::[0-9]*)?", re.ASCII)

# Query parameters that carry a signature (SigV4, SigV2). The proxy signs anew in their place.
SIGNATURE_QUERY = frozenset(
    ("x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-expires", "x-amz-signedheaders", "x-amz-signature",
     "x-amz-security-token", "x-amz-content-sha256", "awsaccesskeyid", "signature", "expires")
)  # fmt: skip
_SIGV4_MARK, _SIGV2_MARK = "x-amz-signature", "awsaccesskeyid"

# rclone and other clients with an SDK v2 name the operation in the query, which has no effect.
MEANINGLESS_QUERY = frozenset(("x-id",))

# A PUT with `partNumber`, too, makes a part; any other query, as `tagging`, changes what is there.
_CREATING_QUERY = frozenset(("uploadId", "renameObject", "x-id"))

# Headers of a GET that do not change its answer. A GET with any other x-amz-* header is not plain.
_PLAIN_AMZ = frozenset(
    ("x-amz-date", "x-amz-content-sha256", "x-amz-security-token", "x-amz-checksum-mode", "x-amz-user-agent",
     "x-amz-api-version", "x-amz-optional-object-attributes")
)  # fmt: skip

# `x-amz-optional-object-attributes` changes the answer to a LIST.
_PLAIN_AMZ_OF_LIST = _PLAIN_AMZ - {"x-amz-optional-object-attributes"}

# Some stores obey these headers, while no grant was checked for the object that they name.
_OTHER_SOURCES = frozenset(f"{prefix}copy-source" for prefix in OTHER_STORE_HEADERS)

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def classify(method: str, target: str, headers: Headers, domains: Iterable[str] = ()) -> Operation:
    """Classify a request by its method, raw target and headers (names in lower case).

    Raises:
        BadRequest: the target is not a path (absolute form, `*`), there is not exactly one Host header or it is
            malformed, or another store's header names an object to copy.
        InvalidBucketName: no bucket can have the name.
        KeyTooLong: no object can have the key, or a source of a copy cannot.
    """
    path, _, raw_query = target.partition("?")
    if not path.startswith("/"):
        raise BadRequest("The request target must be a path.")
    hosts = [value for name, value in headers if name == "host"]
    if len(hosts) > 1:
        raise BadRequest("More than one Host header.")
    host_bucket = bucket_of_host(hosts[0], domains) if hosts else None
    if domains and hosts and _HOST.fullmatch(hosts[0]) is None:
        raise BadRequest("The Host header is malformed.")
    if host_bucket is None:
        first, slash, rest = path[1:].partition("/")
        bucket, key = _decoded(first), _decoded(rest)
        bare = not slash
    else:
        bucket, key, bare = host_bucket, _decoded(path[1:]), False
    query = without_signature(tuple(parse_query(raw_query))) if raw_query else ()
    if not bucket and path != "/":
        raise InvalidBucketName
    if not bucket:
        reach, reaches_by = reach_of(method, None, "", query, headers)
        return Operation(OperationKind.FORWARD, method, None, "", query, reach=reach, reaches_by=reaches_by)
    if not is_bucket_name(bucket):
        raise InvalidBucketName
    if is_too_long(key):
        raise KeyTooLong
    bucket = shared_text(bucket)  # stored with each of its objects
    kind = _kind(method, key, query, headers)
    if kind is not OperationKind.FORWARD:
        return Operation(kind, method, bucket, key, query, bare=bare)
    reach, reaches_by = reach_of(method, bucket, key, query, headers)
    sources, renames = _sources(bucket, headers)
    forgets = _forgets(method, key, query, reach)
    return Operation(kind, method, bucket, key, query, forgets, sources, renames, reach, reaches_by, bare)


CONTROL_BUCKET = "_outrider"
"""The control bucket: S3 allows no such name, so requests for it are for the proxy itself."""


def control_request_of(method: str, target: str, host: str, domains: Iterable[str] = ()) -> Operation | None:
    """The request, if it is for the proxy itself; None: it is for the origin."""
    path, _, raw_query = target.partition("?")
    first, slash, rest = path[1:].partition("/")
    # In virtual-host style the path is a key, and a key may have any name.
    if _decoded(first) != CONTROL_BUCKET or bucket_of_host(host, domains) is not None:
        return None
    query = without_signature(tuple(parse_query(raw_query)))
    return Operation(OperationKind.CONTROL, method, CONTROL_BUCKET, _decoded(rest), query, bare=not slash)


def bucket_of_host(host: str, domains: Iterable[str]) -> str | None:
    """The bucket of a virtual-host style request to `bucket.DOMAIN[:port]`; None for path style."""
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    for domain in domains:
        if name.lower().endswith("." + domain.lower()):
            return name[: -len(domain) - 1]
    return None


def without_signature(query: Query) -> Query:
    """The query without its signature (SigV4 or SigV2). An `Expires` without a signature stays."""
    names = {name.lower() for name, _ in query}
    if not names & {_SIGV4_MARK, _SIGV2_MARK}:
        return query
    return tuple((name, value) for name, value in query if name.lower() not in SIGNATURE_QUERY)


def _decoded(raw: str) -> str:
    if "%" not in raw and raw.isascii():
        return raw
    # The HTTP server gives bytes beyond ASCII as surrogate escapes or as text. On the wire both are UTF-8.
    return unquote_to_bytes(raw.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")


def _kind(method: str, key: str, query: Query, headers: Headers) -> OperationKind:
    if method not in ("GET", "HEAD") or not key:
        return OperationKind.FORWARD
    if query and any(name not in MEANINGLESS_QUERY for name, _ in query):
        return OperationKind.FORWARD
    # Stores differ in how they read other conditions, so the origin must answer those.
    named = dict(headers)
    is_conditional = not conditions.CONDITIONALS.isdisjoint(named)
    if is_conditional and not conditions.are_plain(headers):
        return OperationKind.FORWARD
    # Some stores serve the key of a folder whole, whatever the Range or the conditions are.
    if key.endswith("/") and (is_conditional or "range" in named):
        return OperationKind.FORWARD
    for name, value in headers:
        # Some stores ignore the Range of a HEAD.
        if name == "range" and (method == "HEAD" or ranges.parse(value) is None):
            return OperationKind.FORWARD
        # CORS answers vary with Origin, and stores differ on If-Range. For SSE-C, requester-pays and expected-owner
        # headers the origin must decide each time.
        if name in ("origin", "x-origin", "if-range") or (name.startswith(STORE_HEADERS) and name not in _PLAIN_AMZ):
            return OperationKind.FORWARD
    return OperationKind.GET if method == "GET" else OperationKind.HEAD


def is_warming_head(operation: Operation, headers: Headers) -> bool:
    """Whether this is a HEAD of an object's first byte, which asks for a warm-up. Other caches use the same sign, and
    no client sends such a HEAD for another reason."""
    return (
        operation.method == "HEAD"
        and operation.key != ""
        and not {name for name, _ in operation.query} - MEANINGLESS_QUERY
        and dict(headers).get("range") == "bytes=0-0"
    )


def is_bucket_name(name: str) -> bool:
    return _BUCKET.fullmatch(name) is not None


def without_tenant(bucket: str) -> str:
    """The name of the bucket without its tenant's. A store may know one bucket by both names."""
    return bucket.rpartition(":")[2]


def is_plain_list(operation: Operation, headers: Headers) -> bool:
    """Whether this is a LIST of a bucket whose answer depends only on its query."""
    if operation.method != "GET" or operation.bucket is None or operation.key:
        return False
    if not {name for name, _ in operation.query} <= LIST_QUERY:
        return False
    return all(
        name in _PLAIN_AMZ_OF_LIST
        or not (name.startswith(STORE_HEADERS) or name in ("origin", "x-origin", "range", *CONDITIONALS))
        for name, _ in headers
    )


def _sources(bucket: str, headers: Headers) -> tuple[tuple[ObjectRef, ...], bool]:
    """The other objects that a request reads, and whether it takes these away (rename)."""
    sources = []
    renames = False
    for name, value in headers:
        if name in ("x-amz-copy-source", "x-amz-rename-source"):
            sources += [_source(path, bucket) for path in _source_paths(value)]
        if name == "x-amz-rename-source":
            # A rename stays within one bucket, so the value may lack the bucket: its first folder may look like one.
            whole = unquote(value, errors="surrogateescape")
            sources += [ObjectRef(bucket, path.removeprefix("/")) for path in {whole, *_source_paths(value)}]
            renames = True
        if any(is_too_long(source.key) for source in sources):
            raise KeyTooLong
        if name in _OTHER_SOURCES:
            raise BadRequest(f"{name} is not understood here: write x-amz-copy-source.")
    return tuple(sources), renames


def _forgets(method: str, key: str, query: Query, reach: Reach) -> ForgetScope:
    """The names that a request may change."""
    if method in SAFE_METHODS:
        return ForgetScope.NOTHING
    if reach is not Reach.NAMED:
        return ForgetScope.BUCKET
    if key:
        return ForgetScope.KEY
    if method == "POST" and any(name == "delete" for name, _ in query):
        return ForgetScope.KEYS_IN_BODY
    # A bucket's settings can change the answer for each of its objects.
    return ForgetScope.BUCKET


def of_form(operation: Operation, key: str, fields: Iterable[str]) -> Operation:
    """The upload of a form to `operation`'s bucket. `fields`: the names of its fields, in lower case."""
    reach, reaches_by = reach_of_fields(fields)
    forgets = ForgetScope.KEY if reach is Reach.NAMED else ForgetScope.BUCKET
    return replace(operation, key=key, forgets=forgets, reach=reach, reaches_by=reaches_by)


_PREFLIGHT = ("origin", "access-control-request-method", "access-control-request-headers")


def preflight_of(operation: Operation, headers: Headers) -> tuple[Operation, Headers]:
    """The part of an OPTIONS that goes to the origin. A browser never signs a preflight, so the proxy signs it for any
    sender, and no other header and no query may go with it.

    An OPTIONS without a preflight's headers is refused by the origin, in its own words.
    """
    return replace(operation, query=()), tuple(pair for pair in headers if pair[0] in _PREFLIGHT)


# The version of a source, which all stores read alike: AWS's, Ceph's, MinIO's and `null`.
_SOURCE_VERSION = re.compile(r"versionId=[A-Za-z0-9._-]+", re.ASCII)
_MALFORMED_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def _source_paths(value: str) -> list[str]:
    """The paths that stores may read in a source. Some do not end it at a `?` that begins another query, end it at a
    `#`, or leave it as it is when one of its escapes is malformed (SeaweedFS, MinIO)."""
    path, mark, query = value.partition("?")
    paths = [unquote(path, errors="surrogateescape")]
    if mark and _SOURCE_VERSION.fullmatch(query) is None:
        paths.append(unquote(value, errors="surrogateescape"))
    if "#" in value:
        paths.append(unquote(path.partition("#")[0], errors="surrogateescape"))
    if _MALFORMED_ESCAPE.search(value) is not None:
        paths += [path, value]
    return paths


def _source(path: str, bucket: str) -> ObjectRef:
    if path.startswith("/"):
        path = path[1:]
    name, slash, key = path.partition("/")
    return ObjectRef(name, key) if slash else ObjectRef(bucket, path)


def ref_of(url: str) -> ObjectRef | None:
    """The object of s3://BUCKET/KEY, where KEY is not escaped; None: this is no such URL."""
    bucket, _, key = url.removeprefix("s3://").partition("/")
    if not url.startswith("s3://") or not key or _BUCKET.fullmatch(bucket) is None:
        return None
    try:
        return None if is_too_long(key) else ObjectRef(bucket, key)
    except UnicodeEncodeError:  # a surrogate that escapes nothing
        return None
