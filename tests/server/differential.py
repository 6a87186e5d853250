"""Generated S3 reads of every shape for the bucket and the proxy, and the comparison of their two answers."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import quote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from botocore.auth import HmacV1QueryAuth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import strategies as st

from outrider.core.s3.encoding import encode_path
from tests.support.bucket import REGION
from tests.support.rawhttp import Answer, RawConnection
from tests.support.signed_requests import signed_head

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

BLOCK = 64 * 1024
# 251 is prime, so bytes shifted by any block show.
RAMP = (bytes(range(251)) * (4 * BLOCK // 251 + 1))[: 4 * BLOCK]
KEY_BYTES_MAX = 1024

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """An object to be written: its length, and the headers of its PUT."""

    size: int
    headers: Headers
    multipart: bool = False
    """True: stored as the only part of a multipart upload."""

    def body(self, key: str, generation: int) -> bytes:
        """Another content of the same length for each generation.

        A folder's own key is kept empty: SeaweedFS forgets its content and then breaks the connection.
        """
        return b"" if key.endswith("/") else RAMP[generation : generation + self.size]


@dataclass(frozen=True, slots=True)
class Shape:
    """A read of one object, before it has a key of its own. Header values may contain its `{etag}` and `{modified}`."""

    method: str
    key: str
    query: str
    headers: Headers
    presigned: str
    exists: bool = True

    def filled(self, known: Mapping[str, str]) -> Shape:
        """The shape with the ETag and the date of `known`, the headers of a HEAD. Values that `known` lacks become
        values that no object has."""
        etag = known.get("etag", '"00000000000000000000000000000000"')
        modified = known.get("last-modified", "Sat, 21 Nov 2026 00:00:00 GMT")
        marks = {"{etag}": etag, "{bare}": etag.strip('"'), "{modified}": modified}
        headers = []
        for name, value in self.headers:
            for mark, meant in marks.items():
                value = value.replace(mark, meant)
            headers.append((name, value))
        return Shape(self.method, self.key, self.query, tuple(headers), self.presigned, self.exists)

    def key_of(self, number: int) -> str:
        """This key with a prefix that no other example has; one that is too long is cut to exactly `KEY_BYTES_MAX`."""
        raw = f"{number}/{self.key}".encode()
        if len(raw) <= KEY_BYTES_MAX:
            return raw.decode()
        cut = raw[: KEY_BYTES_MAX - 1].decode(errors="ignore").rstrip("/")
        return cut + "z" * (KEY_BYTES_MAX - len(cut.encode()))


# -- the generator ----------------------------------------------------------------------------------------------------

# Left out are the keys that SeaweedFS itself does not keep: `.` and `..` segments, doubled slashes, backslashes.
_KEY_PIECES = (
    "plain", "a b", "+", "%", "%2F", "%20", "100%", "&=?#", "~!*'()", ";:@,$", "é", "e\u0301", "日本語", "🚀", "a.tar",
    "'\"<>", "[x]{y}|^`", "Ω≈ç√",
)  # fmt: skip
# SeaweedFS keeps no segment of more than 255 bytes.
_long_keys = st.sampled_from(tuple((piece + "/") * 500 for piece in ("k" * 250, "🚀" * 60, "é" * 9, "%20", "a b", "d")))
keys = st.one_of(
    st.lists(st.sampled_from(_KEY_PIECES), min_size=1, max_size=3).map("/".join),
    st.lists(st.sampled_from(_KEY_PIECES), min_size=1, max_size=3).map("".join),
    st.sampled_from(_KEY_PIECES).map(lambda piece: piece + "/"),
    _long_keys,
)

_SIZES = (0, 1, 10, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5)
_STORED_HEADERS: Headers = (
    ("content-type", "application/x-tar"), ("content-type", "text/plain; charset=utf-8"),
    ("cache-control", "max-age=60"), ("content-disposition", 'attachment; filename="a b.tar"'),
    ("content-encoding", "gzip"), ("content-language", "de"), ("expires", "Thu, 01 Jan 2037 00:00:00 GMT"),
    ("x-amz-meta-note", "kept"), ("x-amz-meta-made-by", "tests, twice"), ("x-amz-storage-class", "STANDARD"),
    ("x-amz-tagging", "a=1&b=2"), ("x-amz-sdk-checksum-algorithm", "CRC32"),
)  # fmt: skip
objects = st.builds(
    Stored,
    st.sampled_from(_SIZES),
    st.lists(st.sampled_from(_STORED_HEADERS), max_size=4, unique_by=lambda pair: pair[0]).map(tuple),
    st.sampled_from((False, False, False, True)),
)

_OFFSETS = (0, 1, 9, 10, 999, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 4, 3 * BLOCK + 5, 10**7, 2**62)
_offset = st.sampled_from(_OFFSETS).map(str)
_plain_ranges = st.one_of(
    st.tuples(_offset, _offset).map(lambda pair: f"bytes={pair[0]}-{pair[1]}"),
    _offset.map(lambda first: f"bytes={first}-"),
    _offset.map(lambda count: f"bytes=-{count}"),
)
_odd_ranges = st.one_of(
    st.lists(st.tuples(_offset, _offset), min_size=2, max_size=3).map(
        lambda pairs: "bytes=" + ",".join(f"{first}-{last}" for first, last in pairs)
    ),
    st.sampled_from(
        (
            "bytes=-", "bytes=", "bytes", "", "bytes=a-b", "bytes=1-b", "bytes=5", "bytes=--5", "bytes=+1-5",
            "bytes= 0-9", "bytes=0 -9", "bytes=0-9 ", "Bytes=0-9", "BYTES=0-9", "bytes:0-9", "items=0-9", "0-9",
            "bytes=00-09", "bytes=0-9,", "bytes=,0-9", "bytes=0x0-0x9", "bytes=1e1-20", "bytes=0-9;q=1",
            "bytes=9999999999999999999999-", "bytes=0-99999999999999999999", "bytes=-99999999999999999999",
            "bytes=-0", "bytes=0-0,-1", "bytes=0-9, 20-29", "bytes=0-9 , 5-", "bytes=٠-٩", "none=0-1",
        )
    ),
)  # fmt: skip

_ETAGS = (
    "{etag}", '"other"', "{bare}", "W/{etag}", "other", "*", '"*"', '{etag}, "other"', '"other", {etag}',
    '"other","another"', '"other", {bare}', '*, "other"', '"other", *', "", '""', ",", '"{bare}', "{etag}{etag}",
    "w/{etag}", '"a,b", {etag}', " {etag} ",
)  # fmt: skip
_DATES = (
    "{modified}", "Sat, 01 Jan 2000 00:00:00 GMT", "Fri, 01 Jan 2038 00:00:00 GMT", "Thu, 01 Jan 1970 00:00:00 GMT",
    "Saturday, 01-Jan-00 00:00:00 GMT", "Sat Jan  1 00:00:00 2000", "Fri Jan  1 00:00:00 2038",
    "Friday, 01-Jan-38 00:00:00 GMT", "Sat, 01 Jan 2000 00:00:00 +0000", "Sat, 01 Jan 2000 00:00:00",
    "Sat, 1 Jan 2000 00:00:00 GMT", "sat, 01 jan 2000 00:00:00 gmt", "01 Jan 2000 00:00:00 GMT",
    "Mon, 01 Jan 2000 00:00:00 GMT", "Sat, 01 Jan 2000 00:00:00 PST", "2000-01-01T00:00:00Z", "946684800", "0", "",
    "yesterday", "{modified}, {modified}", "Sat, 32 Jan 2000 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT",
)  # fmt: skip
_CONDITIONS = {
    "if-match": _ETAGS, "if-none-match": _ETAGS, "if-modified-since": _DATES, "if-unmodified-since": _DATES,
}  # fmt: skip
# This many of each list, from its beginning, are forms that clients really send.
_HONEST = 3


def _conditions(*, honest: bool) -> st.SearchStrategy[list[tuple[str, str]]]:
    """Any combination of the four conditional headers."""

    def with_value(name: str) -> st.SearchStrategy[tuple[str, str]]:
        values = _CONDITIONS[name]
        return st.tuples(st.just(name), st.sampled_from(values[:_HONEST] if honest else values))

    condition = st.sampled_from(sorted(_CONDITIONS)).flatmap(with_value)
    return st.lists(condition, max_size=4, unique_by=lambda pair: pair[0])


_other_headers = st.lists(
    st.sampled_from(
        (
            ("x-amz-checksum-mode", "ENABLED"), ("x-amz-checksum-mode", "enabled"), ("x-amz-checksum-mode", "no"),
            ("x-amz-api-version", "2006-03-01"), ("accept-encoding", "identity"), ("accept-encoding", "gzip"),
            ("accept", "*/*"), ("content-type", "application/xml"), ("user-agent", "aws-cli/2"),
            ("amz-sdk-invocation-id", "1-2"), ("amz-sdk-request", "attempt=1"), ("if-range", "{etag}"),
            ("if-range", '"other"'), ("if-range", "{modified}"), ("x-amz-request-payer", "requester"),
            ("x-amz-expected-bucket-owner", "123456789012"), ("origin", "https://example.com"),
            ("x-amz-optional-object-attributes", "RestoreStatus"), ("x-amz-user-agent", "aws-sdk-js"),
            ("x-amz-invented-tomorrow", "1"), ("cache-control", "no-cache"), ("pragma", "no-cache"),
        )
    ),
    max_size=2, unique_by=lambda pair: pair[0],
)  # fmt: skip

_OBJECT_QUERIES = (
    "x-id=GetObject", "x-id=HeadObject", "partNumber=1", "partNumber=2", "partNumber=0", "partNumber=x",
    "versionId=null", "versionId=", "versionId=3sL4kqtJlcpXroDTDmJ", "response-content-type=text%2Fx-mine",
    "response-content-disposition=attachment%3B%20filename%3D%22x%20y%22", "response-cache-control=no-store",
    "response-content-language=fr", "response-content-encoding=br",
    "response-expires=Thu%2C%2001%20Jan%202037%2000%3A00%3A00%20GMT", "invented-tomorrow=1", "Expires=9", "nothing=",
    "tagging", "tagging=", "acl=", "attributes=", "legal-hold=", "retention=", "uploadId=none",
    "name=%F0%9F%9A%80%2B%20",
)  # fmt: skip


@st.composite
def object_shapes(draw: st.DrawFn) -> Shape:
    """A GET or HEAD of one object, existing or not. Half of them are forms that clients really send, half are odd."""
    honest = draw(st.booleans())
    headers: list[tuple[str, str]] = []
    if draw(st.booleans()):
        headers.append(("range", draw(_plain_ranges if honest else st.one_of(_plain_ranges, _odd_ranges))))
    if draw(st.booleans()):
        headers += draw(_conditions(honest=honest))
    if honest:
        headers += draw(st.sampled_from(([], [("x-amz-checksum-mode", "ENABLED")])))
        query = draw(st.sampled_from(("", "", "x-id=GetObject")))
    else:
        headers += draw(_other_headers)
        query = "&".join(sorted(draw(st.lists(st.sampled_from(_OBJECT_QUERIES), max_size=2, unique=True))))
    exists = draw(st.integers(0, 9)) > 0
    method = draw(st.sampled_from(("GET", "GET", "HEAD")))
    # SigV2 signs only some of the parameters, and stores differ on which. So only forms that clients really send are
    # generated.
    presigned = draw(st.sampled_from(("", "v4", "v2") if honest else ("", "v4")))
    return Shape(method, draw(keys), query, tuple(headers), presigned, exists)


_LIST_PARAMETERS = {
    "prefix": ("", "a", "a b", "dir/", "dir/sub/", "é", "🚀", "%", "+", "no such"),
    "delimiter": ("", "/", "b", "é", "//"),
    "max-keys": ("0", "1", "2", "3", "1000", "1001", "-1", "x", ""),
    "encoding-type": ("url", "", "none"),
    "marker": ("", "a", "dir/", "z", "é"),
    "start-after": ("", "a", "dir/", "z", "é"),
    "continuation-token": ("", "nonsense"),
    "fetch-owner": ("true", "false"),
    "key-marker": ("", "a"),
    "invented-tomorrow": ("1",),
}
_BUCKET_CALLS = (
    "location", "versioning", "acl", "tagging", "cors", "policy", "lifecycle", "encryption", "object-lock",
    "notification", "website", "logging", "replication", "publicAccessBlock", "ownershipControls", "uploads",
    "accelerate", "requestPayment", "policyStatus", "inventory", "metrics", "analytics", "intelligent-tiering",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BucketShape:
    """A GET or HEAD of a bucket (`there`: it exists), with a slash after its name or without."""

    method: str
    there: bool
    slash: bool
    query: str
    headers: Headers
    presigned: str


@st.composite
def bucket_shapes(draw: st.DrawFn) -> BucketShape:
    """Lists of both kinds, and the calls about a bucket itself."""
    pairs: list[str] = []
    call = draw(st.sampled_from(("list", "list", "list", "bucket")))
    if call == "list":
        pairs += draw(st.sampled_from(([], ["list-type=2"], ["list-type=2"], ["versions="], ["list-type=1"])))
        names = draw(st.lists(st.sampled_from(sorted(_LIST_PARAMETERS)), max_size=4, unique=True))
        pairs += [f"{name}={quote(draw(st.sampled_from(_LIST_PARAMETERS[name])), safe='')}" for name in names]
    else:
        pairs.append(draw(st.sampled_from(_BUCKET_CALLS)) + draw(st.sampled_from(("", "="))))
    method = draw(st.sampled_from(("GET", "GET", "GET", "HEAD")))
    headers = tuple(draw(_other_headers))
    there = draw(st.integers(0, 9)) > 0
    return BucketShape(
        method, there, draw(st.booleans()), "&".join(sorted(pairs)), headers, draw(st.sampled_from(("", "v4")))
    )


# With these keys the prefixes, delimiters and escapes of a listing make a difference.
LISTED_KEYS = (
    "a", "a b", "a+b", "a%b", "a&b", "b", "dir/", "dir/1", "dir/2", "dir/sub/1", "dir/sub/2", "dir2/x", "é/1", "é/2",
    "🚀", "<x>", "z",
)  # fmt: skip


# -- sending ----------------------------------------------------------------------------------------------------------


class Requester:
    """One keep-alive connection to one endpoint; a request is signed for it, unless it is `unsigned`."""

    def __init__(self, endpoint: str, keys: tuple[str, str]) -> None:
        self.endpoint = endpoint
        self._keys = keys
        host, _, port = endpoint.rpartition("//")[2].partition(":")
        self._address = (host, int(port))
        self._connection: RawConnection | None = None
        self.asked = 0

    def ask(
        self, method: str, bucket: str, key: str | None, query: str = "", headers: Iterable[tuple[str, str]] = (),
        *, body: bytes = b"", presigned: str = "", unsigned: bool = False,
    ) -> Answer:  # fmt: skip
        """`key` None: the bucket itself, without a slash after its name."""
        target = f"/{bucket}" + ("" if key is None else "/" + encode_path(key)) + (f"?{query}" if query else "")
        if unsigned:
            signed = [("host", self.endpoint.partition("//")[2]), *headers]
        elif presigned:
            target, signed = _presigned(method, self.endpoint, target, self._keys, headers, presigned)
        else:
            payload_hash = sha256(body).hexdigest()
            signed = signed_head(method, self.endpoint, target, self._keys, headers, payload_hash)
        if body or method in ("PUT", "POST"):
            signed.append(("content-length", str(len(body))))
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in signed), "", ""]
        return self._exchange(method, "\r\n".join(lines).encode() + body)

    def put(self, bucket: str, key: str, headers: Iterable[tuple[str, str]], *parts: bytes) -> None:
        """Store an object as a multipart upload."""
        begun = self.ask("POST", bucket, key, "uploads=", headers)
        assert begun.status == 200, begun
        upload = ElementTree.fromstring(begun.body).findtext("{*}UploadId")
        listed = ""
        for number, part in enumerate(parts, 1):
            done = self.ask("PUT", bucket, key, f"partNumber={number}&uploadId={upload}", body=part)
            assert done.status == 200, done
            listed += f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(done.headers['etag'])}</ETag></Part>"
        body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        done = self.ask("POST", bucket, key, f"uploadId={upload}", body=body)
        assert done.status == 200, done

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, method: str, raw: bytes) -> Answer:
        self.asked += 1
        if self._connection is None:
            self._connection = RawConnection(self._address)
        try:
            self._connection.send(raw)
            answer = self._connection.read_answer(method)
        except BaseException:
            self.close()
            raise
        if answer.headers.get("connection") == "close":
            self.close()
        return answer


def _presigned(
    method: str, endpoint: str, target: str, keys: tuple[str, str], headers: Iterable[tuple[str, str]], version: str
) -> tuple[str, list[tuple[str, str]]]:
    """The target with a signature in its query, and the headers to send with it."""
    request = AWSRequest(method, endpoint + target, dict(headers))
    credentials = Credentials(*keys)
    auth = S3SigV4QueryAuth(credentials, "s3", REGION, 600) if version == "v4" else HmacV1QueryAuth(credentials, 600)
    auth.add_auth(request)
    sent = [("host", endpoint.partition("//")[2]), *((name.lower(), value) for name, value in request.headers.items())]
    return request.url.removeprefix(endpoint), sent


# -- comparing --------------------------------------------------------------------------------------------------------

NOT_COMPARED = {
    # Headers that state the moment and the maker of one message.
    "date", "server",
    # Each side's own connection: the proxy keeps the one to its client open, whatever the origin does with the other.
    "connection", "keep-alive",
    # The id of one request, new each time, made by the server that answers it.
    "x-amz-request-id", "x-amz-id-2",
    # Headers that only a cache sends.
    "x-cache",
}  # fmt: skip


# Behaviour of SeaweedFS that a cache cannot or should not copy: in an answer with this status, these headers are not
# compared either.
QUIRKS = {
    # RFC 9110 section 15.4.5 wants Cache-Control and Expires of the 200 on the 304 as well, and S3 sends Last-Modified.
    # SeaweedFS sends none of them, and Accept-Ranges instead, which RFC 9110 leaves out. A client has all of them
    # already; forwarding each 304 would cost a round trip on what a cache is for.
    304: {"cache-control", "expires", "last-modified", "accept-ranges"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seen:
    """The part of an answer that a client can see, apart from `NOT_COMPARED`."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def seen(answer: Answer) -> Seen:
    left_out = NOT_COMPARED | QUIRKS.get(answer.status, set())
    headers = {name: value for name, value in answer.headers.items() if name not in left_out}
    body = answer.body
    if answer.status >= 400:
        # The message of an error is for people, and holds the request id and the origin's own path. Programs go by its
        # code.
        if headers.get("content-length", "0") != "0":
            headers["content-length"] = "that of the words"
        if body.startswith(b"<?xml"):
            body = b"code " + (ElementTree.fromstring(body).findtext("Code") or "").encode()
    return Seen(answer.status, tuple(sorted(headers.items())), body)


def difference(direct: Answer, proxied: Answer) -> str | None:
    """The first difference that a client can see; None: there is none."""
    wanted, got = seen(direct), seen(proxied)
    said = []
    if wanted.status != got.status:
        said.append(f"status {wanted.status} != {got.status}")
    ours, theirs = dict(got.headers), dict(wanted.headers)
    said += [
        f"{name}: {theirs.get(name)!r} != {ours.get(name)!r}"
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    ]
    if wanted.body != got.body:
        said.append(f"body ({len(wanted.body)} bytes) {wanted.body[:80]!r} != ({len(got.body)}) {got.body[:80]!r}")
    return "; ".join(said) or None
