"""Generated sequences of S3 calls on versions, and on the settings of buckets and objects."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from hashlib import md5
from typing import TYPE_CHECKING

from hypothesis import strategies as st

if TYPE_CHECKING:
    from tests.server.differential import Headers

# -- versions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """A write to one key of a versioned bucket. `version` is an index into the known versions, the newest first; None:
    no version is named."""

    kind: str
    version: int | None = None


changes = st.lists(
    st.one_of(
        st.just(Change("put")), st.just(Change("put")), st.just(Change("multipart")), st.just(Change("delete")),
        st.builds(Change, st.just("delete"), st.integers(0, 3)), st.builds(Change, st.just("tag"), st.integers(0, 3)),
        st.just(Change("tag")), st.builds(Change, st.just("copy"), st.integers(0, 3)), st.just(Change("delete many")),
    ),
    min_size=1, max_size=5,
)  # fmt: skip

# -- settings ---------------------------------------------------------------------------------------------------------

_NS = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_CORS = (
    f"<CORSConfiguration {_NS}><CORSRule><AllowedOrigin>https://example.com</AllowedOrigin>"
    "<AllowedMethod>GET</AllowedMethod><AllowedMethod>PUT</AllowedMethod><AllowedHeader>*</AllowedHeader>"
    "<ExposeHeader>ETag</ExposeHeader><MaxAgeSeconds>60</MaxAgeSeconds></CORSRule></CORSConfiguration>"
)
_LIFECYCLE = (
    f"<LifecycleConfiguration {_NS}><Rule><ID>one</ID><Filter><Prefix>old/</Prefix></Filter><Status>Enabled</Status>"
    "<Expiration><Days>365</Days></Expiration></Rule></LifecycleConfiguration>"
)
_TAGGING = f"<Tagging {_NS}><TagSet><Tag><Key>a</Key><Value>b c&amp;d</Value></Tag></TagSet></Tagging>"
_ENCRYPTION = (
    f"<ServerSideEncryptionConfiguration {_NS}><Rule><ApplyServerSideEncryptionByDefault><SSEAlgorithm>AES256"
    "</SSEAlgorithm></ApplyServerSideEncryptionByDefault></Rule></ServerSideEncryptionConfiguration>"
)
_LOCK = (
    f"<ObjectLockConfiguration {_NS}><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention>"
    "<Mode>GOVERNANCE</Mode><Days>1</Days></DefaultRetention></Rule></ObjectLockConfiguration>"
)
_ACL = (
    f"<AccessControlPolicy {_NS}><Owner><ID>admin</ID></Owner><AccessControlList><Grant>"
    '<Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser"><ID>admin</ID></Grantee>'
    "<Permission>FULL_CONTROL</Permission></Grant></AccessControlList></AccessControlPolicy>"
)
_OWNERSHIP = (
    f"<OwnershipControls {_NS}><Rule><ObjectOwnership>BucketOwnerPreferred</ObjectOwnership></Rule></OwnershipControls>"
)
_PUBLIC = (
    f"<PublicAccessBlockConfiguration {_NS}><BlockPublicAcls>true</BlockPublicAcls></PublicAccessBlockConfiguration>"
)
_RETENTION = (
    f"<Retention {_NS}><Mode>GOVERNANCE</Mode><RetainUntilDate>2099-01-01T00:00:00Z</RetainUntilDate></Retention>"
)
_HOLD = f"<LegalHold {_NS}><Status>ON</Status></LegalHold>"

OF_BUCKETS = {
    "acl": _ACL, "cors": _CORS, "lifecycle": _LIFECYCLE, "tagging": _TAGGING, "encryption": _ENCRYPTION,
    "object-lock": _LOCK, "ownershipControls": _OWNERSHIP, "publicAccessBlock": _PUBLIC,
    "website": "", "logging": "", "notification": "", "replication": "", "accelerate": "", "requestPayment": "",
    "invented-tomorrow": "",
}  # fmt: skip
OF_OBJECTS = {
    "acl": _ACL, "tagging": _TAGGING, "retention": _RETENTION, "legal-hold": _HOLD, "torrent": "", "attributes": "",
    "restore": "", "select": "",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """A call about a setting. `key` None: the setting is the bucket's."""

    method: str
    key: str | None
    query: str
    headers: Headers
    body: bytes


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    """Some calls about the same setting, so that a later call reads the result of an earlier one."""
    key = draw(st.sampled_from((None, "kept", "kept", "a b/é", "missing")))
    known = OF_BUCKETS if key is None else OF_OBJECTS
    name = draw(st.sampled_from(sorted(known)))
    made = []
    for method in draw(
        st.lists(st.sampled_from(("GET", "PUT", "DELETE", "HEAD", "GET", "POST")), min_size=1, max_size=4)
    ):
        # With this query S3 knows no DELETE: it would delete the bucket or the object itself.
        if method in ("DELETE", "POST") and name in ("acl", "invented-tomorrow", "torrent", "select", "restore"):
            method = "GET"
        body, headers = b"", []
        if method == "PUT":
            good = known[name].encode()
            body = draw(
                st.sampled_from((good, good, good, b"", b"<", b"<Wrong/>", good[:-9], good.replace(b"a", b"z")))
            )
        if draw(st.booleans()) and method == "PUT":
            digest = b64encode(md5(draw(st.sampled_from((body, body, b"other")))).digest()).decode()
            headers.append(("content-md5", digest))
        if draw(st.integers(0, 4)) == 0:
            headers.append(draw(st.sampled_from((
                ("origin", "https://example.com"), ("x-amz-expected-bucket-owner", "123456789012"),
                ("x-amz-acl", "private"), ("x-amz-invented-tomorrow", "1"), ("if-match", '"other"'),
                ("x-amz-object-attributes", "ETag,ObjectSize"),
            ))))  # fmt: skip
        made.append(Call(method, key, name + draw(st.sampled_from(("", "="))), tuple(headers), body))
    return made


ORIGINS = ("https://example.com", "https://other.example", "null", "*")


@st.composite
def cors_questions(draw: st.DrawFn) -> Call:
    """The requests that a browser sends as a CORS preflight, or with an Origin header."""
    method = draw(st.sampled_from(("OPTIONS", "OPTIONS", "GET", "HEAD")))
    headers = [("origin", draw(st.sampled_from(ORIGINS)))]
    if method == "OPTIONS":
        if draw(st.integers(0, 4)) > 0:
            headers.append(("access-control-request-method", draw(st.sampled_from(("GET", "PUT", "POST", "X")))))
        if draw(st.booleans()):
            headers.append(("access-control-request-headers", draw(st.sampled_from(("x-amz-date", "range, x-a", "")))))
    return Call(method, draw(st.sampled_from((None, "kept", "missing"))), "", tuple(headers), b"")
