"""Classification of requests: a table with a line for each request, and properties that hold for all."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.errors import BadRequest, InvalidBucketName, InvalidRequest, KeyTooLong, S3Error
from outrider.core.model import Headers, ObjectRef
from outrider.core.s3.headers import passed_down, passed_up, replayable, without_aws_chunked, without_checksums
from outrider.core.s3.operation import (
    ForgetScope,
    OperationKind,
    bucket_of_host,
    classify,
    is_plain_list,
    preflight_of,
    without_signature,
)
from outrider.core.s3.xml import error_xml, keys_to_delete

SIGNED = (("authorization", "AWS4-HMAC-SHA256 ..."), ("x-amz-date", "x"), ("x-amz-content-sha256", "x"),
          ("x-amz-security-token", "x"), ("range", "bytes=0-1"), ("user-agent", "u"), ("if-match", "e"),
          ("x-amz-checksum-mode", "ENABLED"), ("amz-sdk-request", "attempt=1"))  # fmt: skip
PLAIN_CONDITIONS: tuple[Headers, ...] = tuple(
    ((name, value),)
    for names, value in ((("if-match", "if-none-match"), '"abc-1"'), (("if-match", "if-none-match"), "abc"),
                         (("if-match", "if-none-match"), '"CJ+q/w=="'),
                         (("if-modified-since", "if-unmodified-since"), "Sat, 01 Jan 2000 00:00:00 GMT"))
    for name in names
)  # fmt: skip
ODD_CONDITIONS: tuple[Headers, ...] = (
    *(((name, value),) for name in ("if-match", "if-none-match")
      for value in ("*", '"a", "b"', 'W/"a"', "", '""', '"a', '"a"b"', '"a b"')),
    *(((name, value),) for name in ("if-modified-since", "if-unmodified-since")
      for value in ("Saturday, 01-Jan-00 00:00:00 GMT", "Sat Jan  1 00:00:00 2000", "Sat, 01 Jan 2000 00:00:00 +0000",
                    "Sat, 32 Jan 2000 00:00:00 GMT", "Sat, 01 Jan 2000 00:00:00", "yesterday", "", "0")),
    (("if-match", '"a"'), ("if-match", '"a"')),
    (("if-match", '"a"'), ("if-none-match", "*")),
)  # fmt: skip
GET, HEAD, FORWARD = OperationKind.GET, OperationKind.HEAD, OperationKind.FORWARD
NOTHING, KEY, KEYS, BUCKET = ForgetScope.NOTHING, ForgetScope.KEY, ForgetScope.KEYS_IN_BODY, ForgetScope.BUCKET


@pytest.mark.one_python
@pytest.mark.parametrize(
    ("method", "target", "headers", "kind", "forgets"),
    [
        ("GET", "/bkt/k", (), GET, NOTHING),
        ("HEAD", "/bkt/k", (), HEAD, NOTHING),
        ("GET", "/bkt/k", SIGNED, GET, NOTHING),
        ("GET", "/bkt/k?x-id=GetObject", (), GET, NOTHING),
        ("GET", "/bkt/k?X-Amz-Algorithm=a&X-Amz-Credential=c&X-Amz-Date=d&X-Amz-Expires=9&X-Amz-SignedHeaders=host"
                "&X-Amz-Signature=s&X-Amz-Security-Token=t", (), GET, NOTHING),
        ("GET", "/bkt/k?AWSAccessKeyId=a&Signature=s&Expires=9", (), GET, NOTHING),
        ("GET", "/bkt/a/b/c", (), GET, NOTHING),
        # These requests are not plain: the origin answers each of them.
        ("GET", "/bkt/k?versionId=1", (), FORWARD, NOTHING),
        ("GET", "/bkt/k?partNumber=1", (), FORWARD, NOTHING),
        ("GET", "/bkt/k?response-content-type=x", (), FORWARD, NOTHING),
        ("GET", "/bkt/k?acl", (), FORWARD, NOTHING),
        ("GET", "/bkt/k?torrent", (), FORWARD, NOTHING),
        ("GET", "/bkt/k?invented-tomorrow", (), FORWARD, NOTHING),
        ("GET", "/bkt/k?Expires=9", (), FORWARD, NOTHING),
        ("GET", "/bkt/k", (("x-amz-server-side-encryption-customer-key", "x"),), FORWARD, NOTHING),
        ("GET", "/bkt/k", (("x-amz-request-payer", "requester"),), FORWARD, NOTHING),
        ("GET", "/bkt/k", (("x-amz-expected-bucket-owner", "1"),), FORWARD, NOTHING),
        ("GET", "/bkt/k", (("x-amz-invented-tomorrow", "1"),), FORWARD, NOTHING),
        # Headers of other stores.
        *((method, "/bkt/k", ((name, "1"),), FORWARD, NOTHING) for method in ("GET", "HEAD") for name in (
            "x-minio-extract", "x-goog-encryption-key", "x-goog-if-generation-match", "x-oss-process",
            "x-obs-process", "x-cos-server-side-encryption-customer-key")),
        ("GET", "/bkt/k", (("origin", "https://x"),), FORWARD, NOTHING),
        ("GET", "/bkt/k", (("if-range", "e"),), FORWARD, NOTHING),
        # Ranges that stores read differently, and any range on a HEAD.
        *(("GET", "/bkt/k", (("range", odd),), FORWARD, NOTHING) for odd in (
            "bytes=0-1,3-4", "bytes=5-2", "bytes=-", "bytes=", "bytes", "", "items=0-1", "Bytes=0-1", "bytes=a-b",
            "bytes= 0-1", "bytes=0-1,", "bytes=9999999999999999999-", "bytes=+1-2")),
        ("GET", "/bkt/k", (("range", "bytes=0-1"),), GET, NOTHING),
        ("GET", "/bkt/k", (("range", "bytes=5-"),), GET, NOTHING),
        ("GET", "/bkt/k", (("range", "bytes=-5"),), GET, NOTHING),
        ("HEAD", "/bkt/k", (("range", "bytes=0-1"),), FORWARD, NOTHING),
        ("HEAD", "/bkt/k", (("range", "items=0-1"),), FORWARD, NOTHING),
        # Conditions that stores read differently.
        *(("GET", "/bkt/k", odd, FORWARD, NOTHING) for odd in ODD_CONDITIONS),
        *(("HEAD", "/bkt/k", odd, FORWARD, NOTHING) for odd in ODD_CONDITIONS),
        *(("GET", "/bkt/k", plain, GET, NOTHING) for plain in PLAIN_CONDITIONS),
        *(("HEAD", "/bkt/k", plain, HEAD, NOTHING) for plain in PLAIN_CONDITIONS),
        # Some stores serve a folder's own key whole, whatever range or condition the request has.
        ("GET", "/bkt/dir/", (), GET, NOTHING),
        ("HEAD", "/bkt/dir/", (), HEAD, NOTHING),
        ("GET", "/bkt/dir/", (("range", "bytes=0-1"),), FORWARD, NOTHING),
        *(("GET", "/bkt/dir/", plain, FORWARD, NOTHING) for plain in PLAIN_CONDITIONS),
        *(("HEAD", "/bkt/dir/", plain, FORWARD, NOTHING) for plain in PLAIN_CONDITIONS),
        # The bucket and the service.
        ("GET", "/", (), FORWARD, NOTHING),
        ("GET", "/bkt", (), FORWARD, NOTHING),
        ("GET", "/bkt/?list-type=2", (), FORWARD, NOTHING),
        ("HEAD", "/bkt", (), FORWARD, NOTHING),
        ("OPTIONS", "/bkt/k", (), FORWARD, NOTHING),
        # Writes.
        ("PUT", "/bkt/k", (), FORWARD, KEY),
        ("PUT", "/bkt/k?partNumber=1&uploadId=u", (), FORWARD, KEY),
        ("POST", "/bkt/k?uploads", (), FORWARD, KEY),
        ("POST", "/bkt/k?uploadId=u", (), FORWARD, KEY),
        ("DELETE", "/bkt/k", (), FORWARD, KEY),
        ("DELETE", "/bkt/k?versionId=1", (), FORWARD, KEY),
        ("PUT", "/bkt/k?tagging", (), FORWARD, KEY),
        ("PATCH", "/bkt/k", (), FORWARD, BUCKET),
        ("POST", "/bkt?delete", (), FORWARD, KEYS),
        ("POST", "/bkt/?delete=", (), FORWARD, KEYS),
        ("POST", "/bkt", (), FORWARD, BUCKET),
        ("PUT", "/bkt?lifecycle", (), FORWARD, BUCKET),
        ("DELETE", "/bkt", (), FORWARD, BUCKET),
        ("PUT", "/bkt?delete", (), FORWARD, BUCKET),
    ],
)  # fmt: skip
def test_each_request_is_classified_as_its_line_says(
    method: str, target: str, headers: Headers, kind: OperationKind, forgets: ForgetScope
) -> None:
    operation = classify(method, target, headers)
    assert (operation.kind, operation.forgets) == (kind, forgets)


@pytest.mark.parametrize(
    ("target", "key"),
    [("/bkt/a%20b", "a b"), ("/bkt/a+b", "a+b"), ("/bkt/%D0%BA", "к"), ("/bkt/к", "к"), ("/bkt//a", "/a"),
     ("/bkt/a//b/", "a//b/"), ("/bkt/%FF", "\udcff"), ("/bkt/a%2Fb", "a/b"), ("/bkt/../x", "../x"),
     ("/bkt/a%3Fb?x-id=G", "a?b"), ("/bkt/%", "%"), ("/bkt/%zz", "%zz"), ("/bkt/.", "."), ("/bkt/%00", "\0")],
)  # fmt: skip
def test_a_key_is_unescaped_once(target: str, key: str) -> None:
    assert classify("GET", target, ()).ref == ObjectRef("bkt", key)


@given(st.binary(min_size=1, max_size=40).filter(lambda raw: b"?" not in raw and b"%" not in raw))
def test_a_raw_key_and_its_escaped_form_are_the_same_object(raw: bytes) -> None:
    escaped = "".join(f"%{byte:02X}" for byte in raw)
    as_it_stands = raw.decode("utf-8", "surrogateescape")
    assert classify("GET", "/bkt/" + escaped, ()).key == classify("GET", "/bkt/" + as_it_stands, ()).key


@pytest.mark.parametrize("target", ["", "*", "http://host/bkt/k", "bkt/k"])
def test_a_target_that_is_no_path_is_refused(target: str) -> None:
    with pytest.raises(BadRequest):
        classify("GET", target, ())


def test_two_host_headers_are_refused() -> None:
    with pytest.raises(BadRequest):
        classify("GET", "/bkt/k", (("host", "a"), ("host", "b")))


LONGEST = ("k" * 1024, "%F0%9F%98%80" * 256, "%61" * 1024, "\udcff" * 1024)
TOO_LONG = ("k" * 1025, "k" + "%F0%9F%98%80" * 256, "%61" * 1025, "k" + "\udcff" * 1024, "%FF" * 1025)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"])
def test_a_key_longer_than_s3_allows_is_refused(method: str) -> None:
    for key in LONGEST:
        classify(method, f"/bkt/{key}?acl", (("x-amz-copy-source", f"/bkt/{key}"),))
    for key in TOO_LONG:
        for target, domains in ((f"/bkt/{key}?acl", ()), (f"/{key}", ("s3.local",))):
            with pytest.raises(KeyTooLong):
                classify(method, target, (("host", "bkt.s3.local"),), domains)


@pytest.mark.parametrize("name", ["x-amz-copy-source", "x-amz-rename-source"])
def test_a_source_of_a_copy_longer_than_s3_allows_is_refused(name: str) -> None:
    for key in TOO_LONG:
        with pytest.raises(KeyTooLong):
            classify("PUT", "/bkt/k", ((name, f"/bkt/{key}"),))


def test_a_deletion_of_a_key_longer_than_s3_allows_is_refused() -> None:
    body = "<Delete><Object><Key>a</Key></Object><Object><Key>{}</Key></Object></Delete>"
    assert keys_to_delete(body.format("\u00fc" * 512).encode()) == ["a", "\u00fc" * 512]
    with pytest.raises(KeyTooLong):
        keys_to_delete(body.format("\u00fc" * 513).encode())


@pytest.mark.parametrize(
    "bucket",
    ["a", "..", "-a", "a b", "a%00b", "x" * 256, "a:b", "%2e%2e", "a%2Fb", "%FFa", "127.0.0.1:80", "10.0.0.1%3A9000"],
)
def test_a_bucket_that_cannot_be_is_refused(bucket: str) -> None:
    with pytest.raises(InvalidBucketName):
        classify("GET", f"/{bucket}/k", ())


@pytest.mark.parametrize(
    ("host", "bucket"),
    [("bkt.s3.local", "bkt"), ("bkt.s3.local:9480", "bkt"), ("BKT.S3.LOCAL", "BKT"), ("a.b.s3.local", "a.b"),
     ("s3.local", None), ("s3.local:80", None), ("xs3.local", None), ("other", None), ("127.0.0.1:1", None),
     ("[::1]", None), ("[::1]:80", None), ("", None)],
)  # fmt: skip
def test_a_virtual_host_names_the_bucket(host: str, bucket: str | None) -> None:
    assert bucket_of_host(host, ("s3.local",)) == bucket


def test_in_virtual_host_style_the_whole_path_is_the_key() -> None:
    operation = classify("GET", "/a/b", (("host", "bkt.s3.local"),), ("s3.local",))
    assert operation.ref == ObjectRef("bkt", "a/b")
    assert classify("GET", "/", (("host", "bkt.s3.local"),), ("s3.local",)).kind is FORWARD


@pytest.mark.parametrize(
    ("value", "source"),
    [("/src/k", ObjectRef("src", "k")), ("src/k", ObjectRef("src", "k")), ("src/a%20b", ObjectRef("src", "a b")),
     ("src/k?versionId=3", ObjectRef("src", "k")), ("src/a%3Fb", ObjectRef("src", "a?b"))],
)  # fmt: skip
def test_a_copy_names_its_source(value: str, source: ObjectRef) -> None:
    operation = classify("PUT", "/bkt/k", (("x-amz-copy-source", value),))
    assert operation.sources == (source,)
    assert not operation.renames


@pytest.mark.parametrize(
    ("value", "keys"),
    [("src/a?x/../b", {"a", "a?x/../b"}), ("src/a?versionId=;/../b", {"a", "a?versionId=;/../b"}),
     ("src/a?versionId=%zz/../b", {"a", "a?versionId=%zz/../b"}), ("src/a?versionId=1&x", {"a", "a?versionId=1&x"}),
     ("src/a#/b", {"a", "a#/b"}), ("src/%61%zz", {"a%zz", "%61%zz"}), ("src/a?versionId=null", {"a"})],
)  # fmt: skip
def test_a_source_that_stores_read_in_two_ways_names_both(value: str, keys: set[str]) -> None:
    operation = classify("PUT", "/bkt/k", (("x-amz-copy-source", value),))
    assert set(operation.sources) == {ObjectRef("src", key) for key in keys}
    renamed = classify("PUT", "/bkt/k", (("x-amz-rename-source", value),))
    assert set(renamed.sources) >= {ObjectRef("src", key) for key in keys}
    assert set(renamed.sources) >= {ObjectRef("bkt", f"src/{key}") for key in keys}


@pytest.mark.parametrize("store", ["goog", "minio", "oss", "obs", "cos"])
def test_a_copy_in_another_stores_words_is_refused(store: str) -> None:
    with pytest.raises(BadRequest, match="write x-amz-copy-source"):
        classify("PUT", "/bkt/k", ((f"x-{store}-copy-source", "/src/k"),))
    assert classify("PUT", "/bkt/k", ((f"x-{store}-meta-copy-source", "x"),)).forgets is KEY


@pytest.mark.parametrize("name", ["x-amz-expected-bucket-owner", "x-goog-user-project", "x-minio-extract"])
def test_a_list_with_a_stores_own_header_is_not_plain(name: str) -> None:
    operation = classify("GET", "/bkt/?list-type=2", ())
    assert is_plain_list(operation, (("x-amz-date", "x"),))
    assert not is_plain_list(operation, ((name, "1"),))


def test_a_rename_names_its_source_in_the_same_bucket_and_takes_it_away() -> None:
    operation = classify("PUT", "/bkt/k", (("x-amz-rename-source", "old"),))
    assert (set(operation.sources), operation.renames) == ({ObjectRef("bkt", "old")}, True)
    looks_like_a_bucket = classify("PUT", "/bkt/k", (("x-amz-rename-source", "/old/a%20b"),))
    assert set(looks_like_a_bucket.sources) == {ObjectRef("old", "a b"), ObjectRef("bkt", "old/a b")}


def test_an_unsigned_preflight_takes_nothing_along_but_its_question() -> None:
    headers = (("origin", "https://a"), ("authorization", "x"), ("x-amz-acl", "public-read"), ("cookie", "c"),
               ("access-control-request-method", "PUT"), ("access-control-request-headers", "x-amz-acl"))  # fmt: skip
    operation, passed = preflight_of(classify("OPTIONS", "/bkt/k?policy", headers), headers)
    assert (operation.bucket, operation.key, operation.query) == ("bkt", "k", ())
    assert passed == (headers[0], *headers[4:])


@pytest.mark.parametrize(
    ("target", "host", "bare"),
    [("/bkt", "x", True), ("/bkt?acl", "x", True), ("/bkt/", "x", False), ("/bkt/?acl", "x", False),
     ("/bkt/k", "x", False), ("/", "bkt.s3.local", False), ("/k", "bkt.s3.local", False)],
)  # fmt: skip
def test_a_bucket_without_a_slash_stays_without_one(target: str, host: str, bare: bool) -> None:
    assert classify("GET", target, (("host", host),), ("s3.local",)).bare == bare


@given(st.sampled_from(["PUT", "POST", "DELETE", "PATCH", "LINK"]), st.text("ab/?=&.%20", max_size=12), st.booleans())
def test_a_request_that_is_no_read_makes_something_be_forgotten(method: str, rest: str, named: bool) -> None:
    operation = classify(method, f"/bkt/{'k' if named else ''}{rest}", ())
    assert operation.kind is FORWARD
    assert operation.forgets is not NOTHING


def test_a_lone_expires_is_no_signature() -> None:
    assert without_signature((("Expires", "9"), ("acl", ""))) == (("Expires", "9"), ("acl", ""))
    assert without_signature((("Expires", "9"), ("AWSAccessKeyId", "a"), ("acl", ""))) == (("acl", ""),)


# -- DeleteObjects ----------------------------------------------------------------------------------------------


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Cn", "Co")), max_size=20)))
def test_the_keys_of_a_delete_are_those_that_stand_in_it(keys: list[str]) -> None:
    root = ET.Element("Delete", xmlns="http://s3.amazonaws.com/doc/2006-03-01/")
    ET.SubElement(root, "Quiet").text = "true"
    for key in keys:
        ET.SubElement(ET.SubElement(root, "Object"), "Key").text = key
    assert keys_to_delete(ET.tostring(root)) == keys


@pytest.mark.parametrize(
    ("body", "keys"),
    [
        (b"<Delete><Object><Key>a</Key><VersionId>1</VersionId></Object></Delete>", ["a"]),
        (b"<s:Delete xmlns:s='x'><s:Object><s:Key>a</s:Key></s:Object></s:Delete>", ["a"]),
        (b"<Delete><Object><Key><![CDATA[<a>]]></Key></Object></Delete>", ["<a>"]),
        (b"<Delete><Object><Key>&#x41;&amp; </Key></Object></Delete>", ["A& "]),
        (b"<Delete><Key>not in an object</Key></Delete>", []),
        (b"<Delete><Object><Key/></Object></Delete>", [""]),
        (b"<Delete><Object><Key>a</Key><Key>b</Key></Object></Delete>", ["a", "b"]),
        (
            "<?xml version='1.0' encoding='utf-16'?><Delete><Object><Key>a</Key></Object></Delete>".encode("utf-16"),
            ["a"],
        ),
        # A body that does not parse, or that parsers read differently, is left to the origin and needs a grant on the
        # bucket.
        (b"", None),
        (b"{}", None),
        (b"<Delete><Object><Key>a</Key></Object>", None),
        (b"<Delete/><Delete/>", None),
        (b"<Delete><Object><Key>&unknown;</Key></Object></Delete>", None),
        (b"<Delete><Object><Key>secret/<x/>open</Key></Object></Delete>", None),
        (b"<Delete><Object><Key>secret/<!-- x -->open</Key></Object></Delete>", None),
        (b"<Delete><Object><Key>secret/<?x y?>open</Key></Object></Delete>", None),
        (b"<Delete>" + b"<a>" * 100_000 + b"</a>" * 100_000 + b"</Delete>", None),
        (b"<Delete><!-- x --><Object><Key>a</Key></Object></Delete>", ["a"]),
        (b"<Delete><Object><Key>a<Object><Key>b</Key></Object></Key></Object></Delete>", None),
    ],
)
def test_odd_bodies_of_a_delete(body: bytes, keys: list[str] | None) -> None:
    assert keys_to_delete(body) == keys


@pytest.mark.parametrize(
    "dtd",
    [
        '<!DOCTYPE d [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">'
        '<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">]>',
        '<!DOCTYPE d [<!ENTITY c SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE d SYSTEM "http://127.0.0.1:1/x.dtd">',
        "<!DOCTYPE d>",
    ],
)
def test_a_dtd_is_refused_before_an_entity_expands(dtd: str) -> None:
    assert keys_to_delete(f"{dtd}<Delete><Object><Key>&c;</Key></Object></Delete>".encode()) is None
    assert keys_to_delete(f"{dtd}<Delete><Object><Key>k</Key></Object></Delete>".encode()) is None


@pytest.mark.parametrize("encoding", ["UTF-2", "none", "utf-7", "base64", "rot13"])
def test_a_deletion_in_an_encoding_that_nobody_knows_is_for_the_origin(encoding: str) -> None:
    body = f"<?xml version='1.0' encoding='{encoding}'?><Delete><Object><Key>k</Key></Object></Delete>".encode()
    assert keys_to_delete(body) is None


@given(st.binary(max_size=100))
def test_no_body_makes_the_parser_fail(body: bytes) -> None:
    keys_to_delete(body)
    keys_to_delete(b"<Delete><Object><Key>" + body + b"</Key></Object></Delete>")


# -- replies ----------------------------------------------------------------------------------------------------

anything = st.text(st.characters(), max_size=60)


@given(anything, anything, anything)
def test_an_error_document_is_well_formed_with_any_text(message: str, resource: str, request_id: str) -> None:
    error = S3Error(message)
    root = ET.fromstring(error_xml(error, resource=resource, request_id=request_id))
    assert [child.tag for child in root] == ["Code", "Message", "Resource", "RequestId"]
    assert root.findtext("Code") == "InternalError"


def test_an_error_keeps_its_words() -> None:
    root = ET.fromstring(error_xml(S3Error("a < b & 'c'"), resource="/bkt/к y", request_id="1"))
    assert root.findtext("Message") == "a < b & 'c'"
    assert root.findtext("Resource") == "/bkt/к y"


REPLY: Headers = (("content-type", "t"), ("etag", "e"), ("x-amz-meta-a", "1"), ("content-length", "5"),
                  ("content-range", "x"), ("connection", "close"), ("date", "d"), ("x-amz-request-id", "r"),
                  ("transfer-encoding", "chunked"), ("set-cookie", "c"), ("x-amz-checksum-crc32", "c"),
                  ("cache-control", "no-cache"), ("content-encoding", "gzip"))  # fmt: skip


def test_only_headers_of_the_version_are_replayed() -> None:
    names = [name for name, _ in replayable(REPLY)]
    assert names == ["content-type", "etag", "x-amz-meta-a", "x-amz-checksum-crc32", "cache-control",
                     "content-encoding"]  # fmt: skip
    assert "x-amz-checksum-crc32" not in dict(without_checksums(REPLY))


def test_hop_by_hop_headers_stay_on_their_hop() -> None:
    down = dict(passed_down(REPLY))
    assert not down.keys() & {"connection", "transfer-encoding", "date"}
    assert down.keys() >= {"content-length", "content-range", "x-amz-request-id"}


def test_the_headers_that_go_up_lack_the_clients_signature_and_framing() -> None:
    sent = (*SIGNED, ("host", "h"), ("content-length", "5"), ("content-encoding", "aws-chunked,gzip"),
            ("x-amz-decoded-content-length", "3"), ("expect", "100-continue"), ("x-amz-meta-a", "1"))  # fmt: skip
    up = dict(passed_up(sent))
    assert not up.keys() & {"authorization", "host", "content-length", "expect", "x-amz-date", "x-amz-content-sha256",
                            "x-amz-security-token", "x-amz-decoded-content-length"}  # fmt: skip
    assert (up["content-encoding"], up["x-amz-meta-a"]) == ("gzip", "1")
    assert "content-encoding" not in dict(passed_up((("content-encoding", "aws-chunked"),)))


def test_a_header_that_would_go_up_as_something_else_than_was_signed_is_refused_by_name() -> None:
    latin_1 = b"caf\xe9".decode("utf-8", "surrogateescape")
    with pytest.raises(InvalidRequest, match="x-amz-meta-place"):
        passed_up((("x-amz-meta-place", latin_1),))
    assert passed_up((("x-amz-meta-place", "café"), ("x-forwarded-host", latin_1))) == (("x-amz-meta-place", "café"),)


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("aws-chunked", ""), ("aws-chunked,gzip", "gzip"), ("gzip, AWS-CHUNKED", "gzip"), ("a,b", "a,b"),
        ("gzip, br", "gzip, br"), ("", ""),
    ],
)  # fmt: skip
def test_aws_chunked_is_undone_in_the_encoding(sent: str, stored: str) -> None:
    assert without_aws_chunked(sent) == stored


@pytest.mark.parametrize(("request_line", "creates"), [
    ("PUT /bkt/k", True), ("POST /bkt/k?uploadId=u", True), ("PUT /bkt/k?x-id=PutObject", True),
    ("PUT /bkt/k?partNumber=1&uploadId=u", False), ("POST /bkt/k?uploads", False), ("PUT /bkt/k?tagging", False),
    ("DELETE /bkt/k", False), ("GET /bkt/k", False), ("POST /bkt?delete", False), ("PUT /bkt", False),
])  # fmt: skip
def test_which_writes_make_an_object(request_line: str, creates: bool) -> None:
    method, target = request_line.split()
    assert classify(method, target, (("host", "h"),)).creates is creates
