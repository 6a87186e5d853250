"""The areas of S3's API, each as a short history of requests, with the parts of the answers that a test compares.

Written after the API reference; the areas are those of the public ceph/s3-tests. A step may insert values from earlier
answers: `{etag}`, `{version}`, `{upload}`, `{token}`, `{modified}`, and `{etag1}`, `{etag2}`, ... of parts; `{bucket}`
is the bucket's name.
"""

# ruff: noqa: E501 - a table reads better with one thought a line

from __future__ import annotations

import hashlib
from base64 import b64encode
from dataclasses import dataclass, replace
from urllib.parse import quote

from tests.support.signed_requests import checksum

MIB = 1024 * 1024
RAMP = bytes(range(251)) * 40


@dataclass(frozen=True, slots=True)
class Step:
    """One request. `key` None: it is for the bucket. `presigned`: v4, v2, or empty for a signature in the headers.
    `body` is bytes, or text with `{names}` in it."""

    method: str
    key: str | None = None
    query: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | str = b""
    presigned: str = ""
    signed: bool = True


def put(key: str, body: bytes | str = b"body", query: str = "", /, **headers: str) -> Step:
    return Step("PUT", key, query, _named(headers), body)


def get(key: str | None, query: str = "", /, **headers: str) -> Step:
    return Step("GET", key, query, _named(headers))


def head(key: str | None, query: str = "", /, **headers: str) -> Step:
    return Step("HEAD", key, query, _named(headers))


def delete(key: str | None, query: str = "", /, **headers: str) -> Step:
    return Step("DELETE", key, query, _named(headers))


def post(key: str | None, query: str, body: bytes | str = b"", /, **headers: str) -> Step:
    return Step("POST", key, query, _named(headers), body)


def setting(query: str, body: str) -> Step:
    return Step("PUT", None, query, (), body)


def preflight(key: str | None, origin: str, method: str, headers: str = "") -> Step:
    asked = (("origin", origin), ("access-control-request-method", method))
    more = (("access-control-request-headers", headers),) if headers else ()
    return Step("OPTIONS", key, "", asked + more, signed=False)


def _named(headers: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name.replace("_", "-"), value) for name, value in headers.items())


def unsigned(*steps: Step) -> list[Step]:
    return [replace(step, signed=False) for step in steps]


def both(key: str, query: str = "", /, **headers: str) -> tuple[Step, Step]:
    return get(key, query, **headers), head(key, query, **headers)


def parts(*numbers: int, etag: str = "") -> str:
    listed = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{etag or f'{{etag{number}}}'}</ETag></Part>"
        for number in numbers
    )
    return f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>"


def tags(*pairs: tuple[str, str]) -> str:
    listed = "".join(f"<Tag><Key>{key}</Key><Value>{value}</Value></Tag>" for key, value in pairs)
    return f"<Tagging><TagSet>{listed}</TagSet></Tagging>"


def checksum_of(name: str, body: bytes) -> str:
    return b64encode(hashlib.sha1(body).digest()).decode() if name == "sha1" else checksum(name, body)


def _of_checksum(name: str) -> list[Step]:
    header = f"x-amz-checksum-{name}"
    algorithm = ("x-amz-sdk-checksum-algorithm", name.upper())
    good, other = checksum_of(name, b"body"), checksum_of(name, b"other")
    return [
        Step("PUT", name, "", ((header, good), algorithm), b"body"),
        *both(name, x_amz_checksum_mode="ENABLED"),
        *both(name),
        get(name, x_amz_checksum_mode="ENABLED", range="bytes=0-1"),
        get(name, "attributes=", x_amz_object_attributes="Checksum,ObjectSize,ETag"),
        Step("PUT", name, "", ((header, other), algorithm), b"body"),
        Step("PUT", name, "", ((header, "nonsense"), algorithm), b"body"),
        get(name),
    ]


KEYS = ("plain", "a b", "a+b", "100%", "é/ü", "日本/🚀", "dir/", "dir/1", "&<>'\"", "=?#", "~!*()", "k" * 250)
CORS = (
    "<CORSConfiguration><CORSRule><AllowedOrigin>https://*.example.com</AllowedOrigin><AllowedMethod>GET</AllowedMethod>"
    "<AllowedMethod>PUT</AllowedMethod><AllowedHeader>x-amz-*</AllowedHeader><ExposeHeader>ETag</ExposeHeader>"
    "<MaxAgeSeconds>60</MaxAgeSeconds></CORSRule></CORSConfiguration>"
)
VERSIONING = "<VersioningConfiguration><Status>%s</Status></VersioningConfiguration>"
OLD, NEW = "Sat, 01 Jan 2000 00:00:00 GMT", "Fri, 01 Jan 2038 00:00:00 GMT"
SOURCE = "/{bucket}/source"

AREAS: dict[str, list[Step]] = {
    "headers": [
        put("all", b"body", "", content_type="a/b", cache_control="max-age=9", content_disposition='attachment; filename="x"',
            content_language="de", content_encoding="gzip", expires=NEW, x_amz_meta_a="b c", x_amz_meta_empty="",
            x_amz_storage_class="STANDARD"), *both("all"),
        put("none"), *both("none"), put("none", b"", "", content_type="x/y"), *both("none"),
        put("md5", b"body", "", content_md5="AAAAAAAAAAAAAAAAAAAAAA=="), put("md5", b"body", "", content_md5="x"), get("md5"),
        *both("all", "response-content-type=x%2Fy&response-cache-control=no-store&response-expires=never"),
        put("class", b"", "", x_amz_storage_class="NONSENSE"), head("class"), *both("missing"), delete("missing"),
        get("all", "", x_amz_expected_bucket_owner="123456789012"), Step("PATCH", "all"),
    ],
    "ranges": [
        put("r", RAMP), *(get("r", "", range=f"bytes={extent}") for extent in (
            "0-0", "0-", "5-9", "-1", "-0", "-99999", "99999-", "0-99999", "9-5", "0-1,4-5", "-", "a-b", "10039-10040")),
        head("r", "", range="bytes=0-1"), get("r", "", range="items=0-1"), get("r", "", range="bytes=0-1", if_range="{etag}"),
        get("r", "", range="bytes=0-1", if_range='"other"'), get("r", "", range="bytes=0-1", if_match='"other"'),
        put("empty", b""), get("empty", "", range="bytes=0-"), get("empty", "", range="bytes=-1"), get("empty"),
    ],
    "conditional reads": [
        put("c"), *(step for name, values in {
            "if_match": ("{etag}", '"other"', "*"), "if_none_match": ("{etag}", '"other"', "*"),
            "if_modified_since": (OLD, NEW, "{modified}"), "if_unmodified_since": (OLD, NEW, "{modified}"),
        }.items() for value in values for step in both("c", "", **{name: value})),
        get("c", "", if_match="{etag}", if_unmodified_since=OLD), get("c", "", if_none_match="{etag}", if_modified_since=OLD),
    ],
    "conditional writes": [
        put("w", b"one", "", if_none_match="*"), put("w", b"two", "", if_none_match="*"), get("w"),
        put("w", b"three", "", if_match="{etag}"), get("w"), put("w", b"four", "", if_match='"other"'), get("w"),
        put("absent", b"x", "", if_match='"other"'), put("w", b"five", "", if_none_match='"other"'), get("w"),
        put("copied", b"", "", x_amz_copy_source="/{bucket}/w", if_none_match="*"), get("copied"),
        put("copied", b"", "", x_amz_copy_source="/{bucket}/w", if_none_match="*"), get("copied"),
        post("w", "uploads="), put("w", b"part", "partNumber=1&uploadId={upload}"),
        post("w", "uploadId={upload}", parts(1), if_none_match="*"), get("w"),
        delete("w", "", if_match='"other"'), get("w"), delete("w", "", if_match="{etag}"), get("w"),
    ],
    "multipart": [
        post("m", "uploads=", content_type="a/b", x_amz_meta_a="b"), get(None, "uploads=&prefix=m"),
        put("m", RAMP, "partNumber=1&uploadId={upload}"), put("m", b"small", "partNumber=2&uploadId={upload}"),
        get("m", "uploadId={upload}"), get("m", "uploadId={upload}&max-parts=1"), get("m", "uploadId=none"),
        post("m", "uploadId={upload}", parts(2, 1)), post("m", "uploadId={upload}", parts(1, 2)), get("m"),
        post("m", "uploadId={upload}", parts(1, etag="&quot;other&quot;")), post("m", "uploadId={upload}", parts(3, etag="x")),
        post("m", "uploadId={upload}", "<nonsense"), post("m", "uploadId={upload}", parts()), get("m"),
        put("m", b"x", "partNumber=0&uploadId={upload}"), put("m", b"x", "partNumber=10001&uploadId={upload}"),
        put("m", b"x", "partNumber=x&uploadId={upload}"), put("m", b"x", "partNumber=1&uploadId=none"),
        delete("m", "uploadId={upload}"), delete("m", "uploadId={upload}"), get("m", "uploadId={upload}"),
        post("m", "uploadId={upload}", parts(1)), get(None, "uploads=&prefix=m"),
        post("m", "uploads=", content_type="a/b", x_amz_meta_a="b"), put("m", b"\0" * 5 * MIB, "partNumber=1&uploadId={upload}"),
        put("m", b"last", "partNumber=2&uploadId={upload}"), post("m", "uploadId={upload}", parts(1, 2)), *both("m"),
        *both("m", "partNumber=1"), *both("m", "partNumber=2"), *both("m", "partNumber=3"), get("m", "", range="bytes=5242879-"),
        get("m", "attributes=", x_amz_object_attributes="ObjectParts,ObjectSize,ETag"),
    ],
    "copy": [
        put("source", RAMP, "", content_type="a/b", x_amz_meta_a="b", x_amz_tagging="t=1"),
        put("to", b"", "", x_amz_copy_source=SOURCE), *both("to"), get("to", "tagging="),
        put("source", b"", "", x_amz_copy_source=SOURCE), head("source"),
        put("source", b"", "", x_amz_copy_source=SOURCE, x_amz_metadata_directive="REPLACE", x_amz_meta_new="1", content_type="x/y"),
        *both("source"),
        put("to", b"", "", x_amz_copy_source=SOURCE, x_amz_metadata_directive="REPLACE", x_amz_meta_c="d"), *both("to"),
        put("to", b"", "", x_amz_copy_source=SOURCE, x_amz_tagging_directive="REPLACE", x_amz_tagging="u=2"), get("to", "tagging="),
        put("to", b"", "", x_amz_copy_source=SOURCE, x_amz_metadata_directive="NONSENSE"),
        *(put("to", b"", "", x_amz_copy_source=SOURCE, **{f"x_amz_copy_source_if_{name}": value}) for name, value in (
            ("match", "{etag}"), ("match", '"other"'), ("none_match", '"other"'), ("none_match", "{etag}"),
            ("modified_since", OLD), ("modified_since", NEW), ("unmodified_since", OLD), ("unmodified_since", NEW))), get("to"),
        put("to", b"", "", x_amz_copy_source="/{bucket}/missing"), put("to", b"", "", x_amz_copy_source="/no-such-bucket/k"),
        put("to", b"", "", x_amz_copy_source="nonsense"), put("to", b"", "", x_amz_copy_source=SOURCE + "?versionId=none"), get("to"),
        put("é +%", b"odd"), put("to", b"", "", x_amz_copy_source="{bucket}/" + quote("é +%")), get("to"),
        post("to", "uploads="), put("to", b"", "partNumber=1&uploadId={upload}", x_amz_copy_source=SOURCE),
        put("to", b"", "partNumber=1&uploadId={upload}", x_amz_copy_source=SOURCE, x_amz_copy_source_range="bytes=1-9"),
        put("to", b"", "partNumber=2&uploadId={upload}", x_amz_copy_source=SOURCE, x_amz_copy_source_range="bytes=1-99999"),
        put("to", b"", "partNumber=2&uploadId={upload}", x_amz_copy_source=SOURCE, x_amz_copy_source_range="1-2"),
        post("to", "uploadId={upload}", parts(1)), *both("to"),
    ],
    "listing": [
        # SeaweedFS loses a body that is put under a folder's own key.
        *(put(key, b"" if key.endswith("/") else b"body") for key in KEYS), *(step for version in ("", "list-type=2&") for step in (
            get(None, version.rstrip("&")), get(None, f"{version}max-keys=2"), get(None, f"{version}max-keys=0"), get(None, f"{version}max-keys=x"),
            get(None, f"{version}delimiter=%2F"), get(None, f"{version}delimiter=%2F&prefix=dir%2F"),
            get(None, f"{version}encoding-type=url"), get(None, f"{version}encoding-type=none"), get(None, f"{version}prefix=none"),
            get(None, f"{version}delimiter=%2F&max-keys=3&encoding-type=url"), get(None, f"{version}prefix={quote('é/', safe='')}"))),
        get(None, "max-keys=2&marker=dir%2F"), get(None, "list-type=2&start-after=dir%2F&fetch-owner=true"),
        get(None, "list-type=2&max-keys=3"), get(None, "list-type=2&max-keys=3&continuation-token={token}"),
        get(None, "list-type=2&max-keys=3&continuation-token={token}"), get(None, "list-type=2&continuation-token=nonsense"),
        *(step for key in KEYS for step in both(key)), head(None), get(None, "location="),
        post(None, "delete=", "<Delete><Object><Key>a b</Key></Object><Object><Key>none</Key></Object></Delete>"), get("a b"),
        post(None, "delete=", "<nonsense"), post(None, "delete=", "<Delete></Delete>"), get(None, "list-type=2"),
    ],
    "presigned": [
        *(step for version in ("v4", "v2") for step in (
            Step("PUT", version, body=b"body", presigned=version), Step("GET", version, presigned=version),
            Step("HEAD", version, presigned=version), Step("GET", version, "", (("range", "bytes=1-2"),), presigned=version),
            Step("GET", None, "list-type=2&prefix=v", presigned=version), Step("GET", "missing", presigned=version),
            Step("DELETE", version, presigned=version), Step("GET", version, presigned=version))),
        # SeaweedFS refuses this request with SigV2.
        put("k"), Step("GET", "k", "response-content-type=x%2Fy", presigned="v4"),
    ],
    **{f"checksum {name}": _of_checksum(name) for name in ("crc32", "crc32c", "crc64nvme", "sha1", "sha256")},
    "acl": [
        put("a", b"body", "", x_amz_acl="public-read"), get("a", "acl="), put("a", b"", "acl=", x_amz_acl="private"), get("a", "acl="),
        put("a", b"", "acl=", x_amz_acl="nonsense"), put("a", b"", "acl=", x_amz_grant_read="id=admin"), get("missing", "acl="),
        get(None, "acl="), Step("PUT", None, "acl=", (("x-amz-acl", "private"),)), setting("acl=", "<nonsense"), get(None, "acl="), get("a"),
    ],
    "cors": [
        get(None, "cors="), preflight("k", "https://a.example.com", "GET"), setting("cors=", CORS), get(None, "cors="), put("k"),
        preflight("k", "https://a.example.com", "GET"), preflight("k", "https://a.example.com", "PUT", "x-amz-date"),
        preflight("k", "https://a.example.com", "DELETE"), preflight("k", "https://a.example.com", "PUT", "x-other"),
        preflight("k", "https://elsewhere.org", "GET"), preflight(None, "https://a.example.com", "PUT"),
        get("k"), get("k", "", origin="https://a.example.com"), get("k", "", origin="https://elsewhere.org"), get("k"),
        head("k", "", origin="https://a.example.com"), put("k", b"new", "", origin="https://a.example.com"), get("k"),
        setting("cors=", "<nonsense"), delete(None, "cors="), get(None, "cors="), get("k", "", origin="https://a.example.com"),
    ],
    "tagging": [
        put("t", b"body", "", x_amz_tagging="a=1&b=x%20y"), *both("t"), get("t", "tagging="), put("t", tags(("c", "3")), "tagging="),
        get("t", "tagging="), *both("t"), put("t", tags(*((f"k{n}", "v") for n in range(11))), "tagging="),
        put("t", tags(("a", "1"), ("a", "2")), "tagging="), put("t", tags(("k" * 129, "v")), "tagging="), put("t", "<x", "tagging="),
        get("t", "tagging="), delete("t", "tagging="), get("t", "tagging="), *both("t"), get("missing", "tagging="),
        put("u", b"", "", x_amz_tagging="a=1&a=2"), get(None, "tagging="), setting("tagging=", tags(("a", "b"))),
        get(None, "tagging="), delete(None, "tagging="), get(None, "tagging="),
    ],
    # Unsigned requests, in a private bucket and in a public one.
    "anonymous": [
        put("a"), put("p", b"public", "", x_amz_acl="public-read"), *both("a"), *both("p"),
        *unsigned(*both("a"), *both("p"), *both("missing"), get("p", "", range="bytes=1-2"), get("p", "", origin="https://a.example.com"),
            get(None), get(None, "list-type=2"), head(None), get("p", "acl="), get("p", "tagging="), put("n"), delete("a"),
            get("p", "response-content-type=x%2Fy"), post("m", "uploads="),
            post(None, "delete=", "<Delete><Object><Key>a</Key></Object></Delete>")), get("a"),
        put("a", b"", "acl=", x_amz_acl="public-read"), *unsigned(*both("a")), put("a", b"", "acl=", x_amz_acl="private"), *unsigned(*both("a")),
        delete("p"), *unsigned(*both("p")),
    ],
    "open anonymous": [
        put("a"), *both("a"), *unsigned(*both("a"), *both("missing"), get("a", "", range="bytes=1-2"), get("a", "", range="bytes=9-"),
            get("a", "", if_none_match="{etag}"), get("a", "", if_match='"other"'), get(None), get(None, "list-type=2&prefix=a"), head(None),
            get("a", "response-content-type=x%2Fy"), put("a", b"new"), get("a")), *both("a"),
        *unsigned(put("n", b"0123456789", "", content_type="a/b", x_amz_meta_a="b"), *both("n"), put("c", b"", "", x_amz_copy_source="/{bucket}/n")),
        *both("n"), *both("c"), *unsigned(delete("n"), get("n")), get("n"), *unsigned(post("m", "uploads="),
            put("m", b"part", "partNumber=1&uploadId={upload}"), post("m", "uploadId={upload}", parts(1)), get("m")), get("m"), *unsigned(
            post(None, "delete=", "<Delete><Object><Key>a</Key></Object></Delete>"), get("a"), get("a", "versions=")), get("a"),
    ],
    # This area comes last, since its settings stay on the bucket.
    "versioning": [
        put("before", b"null version"), get(None, "versioning="), setting("versioning=", "<x"), setting("versioning=", VERSIONING % "Enabled"),
        get(None, "versioning="), put("v", b"one"), get("v"), get("v", "versionId={version}"), put("v", b"two"), get("v"), head("v"),
        get("v", "versionId={version}"), get("v", "versionId=none"), get("before", "versionId=null"), put("before", b"new"),
        get("before", "versionId=null"), get("before"), get(None, "versions="), get(None, "versions=&max-keys=2&delimiter=%2F"),
        put("c", b"", "", x_amz_copy_source="/{bucket}/before?versionId=null"), get("c"), put("v", tags(("a", "1")), "tagging="),
        get("v", "tagging="), delete("v"), get("v"), head("v"), get("v", "versionId={version}"), head("v", "versionId={version}"),
        get(None, "versions="), delete("v", "versionId={version}"), get("v"), get(None, ""),
        setting("versioning=", VERSIONING % "Suspended"), put("v", b"null"), get("v"), get("v", "versionId=null"), delete("v"), get("v"),
        get(None, "versions="), post(None, "delete=", "<Delete><Object><Key>before</Key></Object></Delete>"), get("before"),
    ],
}  # fmt: skip
