"""How far a request reaches beyond the names in its path: the headers and query parameters that are known to concern
these names alone, and those that name, or may name, something else.

The grant is checked for the names in the path, and the origin obeys the whole request, under the proxy's signature.
Therefore this is a list of what is allowed: a header or parameter that does not stand here may mean anything.

Sources: Amazon S3 API Reference, the requests of each operation (a test compares botocore's model of them); for other
stores the source code that is named beside each line.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from outrider.core.model import Headers
from outrider.core.s3.encoding import STORE_HEADERS


class Reach(IntEnum):
    """A request may read or write the names in its path and their copy sources, the whole bucket, or anything at the
    origin."""

    NAMED = 0
    BUCKET = 1
    SERVICE = 2


# Names that come in headers, in form fields, and in the query: clients that presign move headers into the query, and
# some stores obey them there.
_NAMED = frozenset(
    ("x-amz-acl", "x-amz-api-version", "x-amz-bypass-governance-retention", "x-amz-client-token",
     "x-amz-confirm-remove-self-bucket-access", "x-amz-content-sha256", "x-amz-date", "x-amz-decoded-content-length",
     "x-amz-expected-bucket-owner", "x-amz-max-parts", "x-amz-metadata-directive", "x-amz-mfa", "x-amz-mp-object-size",
     "x-amz-object-annotation-directive", "x-amz-object-attributes", "x-amz-object-if-match", "x-amz-object-ownership",
     "x-amz-optional-object-attributes", "x-amz-part-number-marker", "x-amz-request-payer",
     "x-amz-sdk-checksum-algorithm", "x-amz-security-token", "x-amz-skip-destination-validation",
     "x-amz-source-expected-bucket-owner", "x-amz-storage-class", "x-amz-tagging", "x-amz-tagging-directive",
     "x-amz-te", "x-amz-trailer", "x-amz-transition-default-minimum-object-size", "x-amz-user-agent",
     "x-amz-website-redirect-location", "x-amz-write-offset-bytes",
     "x-minio-force-create", "x-oss-forbid-overwrite", "x-cos-forbid-overwrite",
     "cache-control", "content-disposition", "content-encoding", "content-language", "content-md5", "content-type",
     "expires")
)  # fmt: skip
_NAMED_PREFIXES = (
    "x-amz-bucket-", "x-amz-checksum-", "x-amz-grant-", "x-amz-if-match-", "x-amz-meta-", "x-amz-object-lock-",
    "x-amz-server-side-encryption",
    # Google's XML API, "HTTP headers"; the API references of OSS, OBS and COS, "PutObject"; MinIO's
    # cmd/handler-utils.go (`userMetadataKeyPrefixes`).
    *(f"x-{store}-{name}" for store in ("goog", "oss", "obs", "cos", "minio") for name in (
        "meta-", "acl", "storage-class", "server-side-encryption", "encryption-", "tagging", "if-")),
)  # fmt: skip

# A grant is needed on the source that these headers name, see `operation`. No grant is checked for one in the query.
_SOURCES = ("x-amz-copy-source", "x-amz-rename-source")

_IN_BUCKET = (
    # MinIO, and AWS Snowball devices, unpack an archive into keys: MinIO's cmd/api-router.go and cmd/untar.go.
    "x-amz-meta-snowball-auto-extract", "x-amz-meta-minio-snowball-",
    # MinIO reads a file in an archive, whose own key is a part of the path: cmd/s3-zip-handlers.go.
    "x-minio-extract",
    # MinIO deletes all keys that begin with the key: cmd/object-api-options.go (`delOpts`).
    "x-minio-force-delete",
    # MinIO stores the file of a form under many keys: cmd/bucket-handlers.go (`PostPolicyBucketHandler`).
    "x-minio-fanout-list",
)  # fmt: skip

# Fields of a form that carry its signature.
_SIGNATURE_FIELDS = frozenset(("x-amz-algorithm", "x-amz-credential", "x-amz-signature", "x-amz-signedheaders"))

_READ_OF_KEY = frozenset(
    ("acl", "annotation", "annotation-prefix", "annotationName", "attributes", "continuation-token", "encoding-type",
     "generation", "legal-hold", "max-annotation-results", "max-parts", "part-number-marker", "partNumber",
     "response-cache-control", "response-content-disposition", "response-content-encoding",
     "response-content-language", "response-content-type", "response-expires", "retention", "tagging", "torrent",
     "uploadId", "versionId", "x-id")
)  # fmt: skip
_OF_KEY = {
    "GET": _READ_OF_KEY,
    "HEAD": _READ_OF_KEY,
    # `append` and `position`: Ceph's rgw_rest_s3.cc (`RGWPutObj_ObjStore_S3::get_params`).
    "PUT": frozenset(
        ("acl", "annotation", "annotationName", "append", "encryption", "legal-hold", "partNumber", "position",
         "renameObject", "retention", "tagging", "uploadId", "versionId", "x-id")
    ),
    # Not `restore`: its body may name a bucket for the results (RestoreObject, `OutputLocation`).
    "POST": frozenset(("select", "select-type", "uploadId", "uploads", "versionId", "x-id")),
    "DELETE": frozenset(("annotation", "annotationName", "tagging", "uploadId", "versionId", "x-id")),
}  # fmt: skip
# Without one of these, some stores read a POST to a key as one to its bucket, where the keys stand in the body: MinIO's
# and SeaweedFS's routers.
_OF_POST_TO_KEY = frozenset(("select", "uploadId", "uploads"))

LIST_QUERY = frozenset(
    ("list-type", "prefix", "delimiter", "max-keys", "marker", "continuation-token", "start-after", "encoding-type",
     "fetch-owner", "versions", "uploads", "key-marker", "version-id-marker", "upload-id-marker", "max-uploads", "x-id")
)  # fmt: skip
"""Query parameters of a bucket's LISTs (objects, versions, uploads). `x-id` has no effect."""

_SETTINGS = frozenset(
    ("abac", "accelerate", "acl", "analytics", "cors", "encryption", "id", "intelligent-tiering", "inventory",
     "lifecycle", "logging", "metadataConfiguration", "metadataTable", "metrics", "notification", "object-lock",
     "ownershipControls", "policy", "publicAccessBlock", "replication", "requestPayment", "tagging", "versioning",
     "website", "x-id")
)  # fmt: skip
# Not these: their bodies name another bucket, to which the origin then writes, or a receiver of its events.
_SETTINGS_THAT_NAME_OTHERS = frozenset(
    ("analytics", "inventory", "logging", "metadataConfiguration", "metadataTable", "notification", "replication")
)
_OF_BUCKET = {
    # Not `session`: the reply to CreateSession has keys of the origin. `metadata` and `allow-unordered` belong to LISTs
    # of MinIO (cmd/api-router.go) and of Ceph (rgw_rest_s3.cc).
    "GET": LIST_QUERY | _SETTINGS | {"location", "policyStatus", "metadata", "allow-unordered"},
    "HEAD": LIST_QUERY | {"location"},
    "PUT": _SETTINGS - _SETTINGS_THAT_NAME_OTHERS,
    "POST": frozenset(("delete", "x-id")),
    "DELETE": _SETTINGS,
}

_READ_OF_SERVICE = frozenset(
    ("bucket-region", "continuation-token", "encoding-type", "marker", "max-buckets", "max-directory-buckets",
     "max-keys", "prefix", "x-id")
)  # fmt: skip
# Not POST: `POST /` is STS and IAM at MinIO, Ceph and SeaweedFS, which give out keys.
_OF_SERVICE = {"GET": _READ_OF_SERVICE, "HEAD": _READ_OF_SERVICE}


def reach_of(
    method: str, bucket: str | None, key: str, query: Iterable[tuple[str, str]], headers: Headers
) -> tuple[Reach, str]:
    """How far the request reaches, and the part of it that reaches so far; empty: it concerns the names in its path."""
    allowed = _OF_KEY if key else _OF_BUCKET if bucket else _OF_SERVICE
    if method not in allowed:
        return Reach.SERVICE, f"the method {method}"
    names = [name for name, _ in query]
    if key and method == "POST" and _OF_POST_TO_KEY.isdisjoint(names):
        return Reach.SERVICE, names[0] if names else "a POST to a key without a sub-resource"
    farthest, part = Reach.NAMED, ""
    for name in names:
        reach = Reach.NAMED if name in allowed[method] else _in_query(name.lower())
        if reach > farthest:
            farthest, part = reach, name
    for name, _ in headers:
        if name.startswith(STORE_HEADERS) and (reach := _in_header(name)) > farthest:
            farthest, part = reach, name
    return farthest, part


def reach_of_fields(names: Iterable[str]) -> tuple[Reach, str]:
    """How far an upload by form reaches. `names`: of its fields, in lower case. Some stores read each field of a store
    as a header."""
    known = (name for name in names if name.startswith(STORE_HEADERS) and name not in _SIGNATURE_FIELDS)
    return max(((_in_query(name), name) for name in known), default=(Reach.NAMED, ""))


def _in_header(name: str) -> Reach:
    return Reach.NAMED if name.startswith(_SOURCES) else _in_query(name)


def _in_query(name: str) -> Reach:
    if name.startswith(_IN_BUCKET):
        return Reach.BUCKET
    return Reach.NAMED if name in _NAMED or name.startswith(_NAMED_PREFIXES) else Reach.SERVICE
