"""Fuzz tests of a request's parsers: each input is refused, or read as other servers read it.

The parsers are those of XML, keys, forms, chunks and signatures.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.auth.grants import AccessLevel, Client, Grant, missing_grant
from outrider.core.auth.verification import SignedRequest
from outrider.core.errors import S3Error
from outrider.core.s3.aws_chunked import ChunkedDecoder
from outrider.core.s3.form_fields import FieldsReader, FileScanner, PostForm
from outrider.core.s3.list_page import parse_page
from outrider.core.s3.operation import OperationKind, classify
from outrider.core.s3.xml import keys_to_delete
from tests.support.awschunked import SIGNED, SIGNED_TRAILER, Chunked, checksum
from tests.support.awschunked import chunk_signing as signing_of
from tests.support.fuzzing import fuzzing
from tests.support.signed import ask as verified
from tests.support.signed import signed_by_boto
from tests.support.trials import Trials

# -- XML --------------------------------------------------------------------------------------------------------------

XML_BITS = [
    "<Delete>",
    "</Delete>",
    "<Object>",
    "</Object>",
    "<Key>",
    "</Key>",
    "<Quiet>true</Quiet>",
    "a",
    "team/",
    "&amp;",
    "&#x41;",
    "&lt;",
    "<!-- x -->",
    "<?p i?>",
    "<![CDATA[<b>]]>",
    "<x:Key xmlns:x='u'>",
    "</x:Key>",
    "<Key/>",
    " ",
    "<VersionId>1</VersionId>",
    "]]>",
    "&",
    "<!DOCTYPE a>",
    "<?xml version='1.0'?>",
    "\n",
]


@st.composite
def deletions(draw: st.DrawFn) -> bytes:
    """Bodies of DeleteObjects that are mostly well-formed, with odd pieces anywhere."""
    text = "<Delete>"
    for _ in range(draw(st.integers(0, 3))):
        inside = "".join(draw(st.lists(st.sampled_from(XML_BITS[7:15] + XML_BITS[17:20]), max_size=4)))
        text += (
            draw(st.sampled_from(["", "<!-- c -->", "<Other><Key>o</Key></Other>"]))
            + f"<Object><Key>{inside}</Key></Object>"
        )
    text += "</Delete>"
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(XML_BITS)) + text[at:]
    return text.encode()


@given(deletions())
@fuzzing(500)
def test_no_key_that_another_parser_deletes_escapes_the_grants(trials: Trials, body: bytes) -> None:
    """`keys_to_delete` finds every key that a strict parser finds, which takes an element's first text for all of
    it."""
    ours = keys_to_delete(body)
    saw = "needs a grant on the bucket"
    if ours is not None:
        saw = "the keys that others see"
        root = ET.fromstring(body, ET.XMLParser(target=ET.TreeBuilder(insert_comments=True, insert_pis=True)))
        for entry in root:
            for key in entry:
                if callable(entry.tag) or callable(key.tag) or entry.tag.rpartition("}")[2] != "Object":
                    continue
                if key.tag.rpartition("}")[2] == "Key":
                    assert (key.text or "") in ours
    trials.record("fuzz", "bodies of DeleteObjects", saw)


@given(
    st.lists(
        st.sampled_from(
            [
                "<ListBucketResult>",
                "</ListBucketResult>",
                "<Contents>",
                "</Contents>",
                "<Key>",
                "</Key>",
                "<Size>",
                "</Size>",
                "7",
                "-1",
                "9" * 5000,
                "1e3",
                "%FF",
                "a+b",
                "<IsTruncated>true</IsTruncated>",
                "<NextContinuationToken>t</NextContinuationToken>",
                "<!DOCTYPE x>",
                "&#0;",
                "<a>" * 40,
            ]
        ),
        max_size=14,
    )
)
@fuzzing(300)
def test_any_text_is_a_list_page_or_none(trials: Trials, bits: list[str]) -> None:
    page = parse_page("".join(bits).encode())
    assert page is None or all(entry.key and entry.size >= -1 for entry in page.objects)
    trials.record("fuzz", "pages of a LIST", "a page" if page else "none")


@pytest.mark.parametrize("parse", [parse_page, keys_to_delete])
def test_xml_of_any_depth_costs_no_more_than_its_length(trials: Trials, parse: Any) -> None:
    """Without the limit on depth this body took half a minute, because the time grew with the square of the depth."""
    assert parse(b"<a>" * 200_000 + b"</a>" * 200_000) is None
    assert parse(b"<ListBucketResult>" + b"<a>" * 15 + b"</a>" * 15 + b"</ListBucketResult>") is not None
    trials.record("fuzz", "XML that is 200,000 elements deep", "refused")


BOMB = (
    b'<!DOCTYPE d [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(9))
    + b"]>"
)


@pytest.mark.parametrize("parse", [parse_page, keys_to_delete])
@pytest.mark.parametrize("dtd", [BOMB, b'<!DOCTYPE d [<!ENTITY j SYSTEM "file:///etc/passwd">]>', b"<!DOCTYPE d>"])
def test_no_entity_expands(trials: Trials, parse: Any, dtd: bytes) -> None:
    assert (
        parse(dtd + b"<ListBucketResult><Contents><Key>&j;</Key><Size>1</Size></Contents></ListBucketResult>") is None
    )
    assert parse(dtd + b"<Delete><Object><Key>&j;</Key></Object></Delete>") is None
    trials.record("fuzz", "XML with a DTD", "refused")


# -- keys, forms, chunks, signatures ----------------------------------------------------------------------------------

SEGMENTS = st.sampled_from(
    ["team", "..", ".", "", "other", "x", "...", "..\\", "\\..", "a\\b", "team\\..", "%2e%2e", "..;"]
)
TEAM = Client("team", "AK", (Grant("bkt", "team/", AccessLevel.WRITE),))


def resolved(key: str, *, backslashes: bool, collapsing: bool, rooted: bool) -> str | None:
    """A path that a file server may make of a key. None means that the path leaves the bucket."""
    path = key.replace("\\", "/") if backslashes else key
    cached: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            if not cached and not rooted:
                return None
            del cached[-1:]
        elif segment != "." and not (collapsing and not segment):
            cached.append(segment)
    return "/".join(cached)


@given(
    st.lists(SEGMENTS, max_size=6).map(lambda more: "/".join(["team", *more])),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
@fuzzing(500)
def test_a_granted_key_stays_under_its_prefix_in_every_reading(
    trials: Trials, key: str, backslashes: bool, collapsing: bool, rooted: bool
) -> None:
    operation = classify("GET", "/bkt/" + quote(key, safe="/"), ()) if key else None
    listed = classify("GET", f"/bkt?prefix={quote(key, safe='')}", ())
    granted = operation is not None and missing_grant(TEAM, operation) is None
    for asked in (granted, missing_grant(TEAM, listed) is None):
        if asked and any(segment in (".", "..") for segment in key.replace("\\", "/").split("/")):
            meant = resolved(key, backslashes=backslashes, collapsing=collapsing, rooted=rooted)
            assert meant is not None
            assert meant.startswith("team/") or meant == "team", (key, meant)
    trials.record("fuzz", "keys with dots, doubled slashes and backslashes", "granted" if granted else "refused")


PARTS = st.sampled_from(
    [
        "form-data; name=key",
        'form-data; name="key"',
        "form-data; name*=utf-8''key",
        "form-data; name*0=ke; name*1=y",
        "form-data",
        "attachment; name=key",
        'form-data; name=file; filename="a.txt"',
        "form-data; name=file; filename*=bogus''%ff",
        "form-data; name=file; filename*=utf-8''%00%0d",
        "form-data; name=file; filename*0*=utf-8''a; filename*1=b",
        'form-data; name="k',
        "form-data; name=x; name=y",
        "form-data; name=policy",
        "form-data; name=acl",
        "",
        ";;;",
        "form-data; name=\x00",
        "form-data; name=é",
    ]
)
FIELD_HEADS = st.sampled_from(
    [
        "Content-Disposition: ",
        "content-disposition:",
        "Content-Disposition : ",
        "X: y\r\nContent-Disposition: ",
        "Content-Type: a/b\r\nContent-Disposition: ",
        " Content-Disposition: ",
        "",
    ]
)


@given(
    st.lists(
        st.tuples(FIELD_HEADS, PARTS, st.sampled_from(["v", "", "\r\n", "--b", "\r\n--b--", "${filename}"])), max_size=4
    ),
    st.lists(st.integers(0, 300), max_size=4).map(sorted),
)
@fuzzing(400)
def test_a_form_of_odd_parts_is_a_form_or_an_s3_error(
    trials: Trials, parts: list[tuple[str, str, str]], cuts: list[int]
) -> None:
    raw = "".join(f"--b\r\n{head}{part}\r\n\r\n{value}\r\n" for head, part, value in parts).encode() + b"--b--\r\n"
    saw = "an S3 error"
    refusal: S3Error | None = None
    try:
        form = _read_form(raw, cuts)
        if form is not None:
            saw = "a form"
            again = FieldsReader("b").feed(form.head(form.fields))
            assert again is not None
            assert again[0].fields == form.fields
            assert form.values["key"] == form.key
    except S3Error as error:
        refusal = error
    assert refusal is None or refusal.status < 500
    trials.record("fuzz", "POST forms of odd parts", saw)


def _read_form(raw: bytes, cuts: list[int]) -> PostForm | None:
    reader, scanner = FieldsReader("b"), None
    form = None
    for start, stop in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        piece = raw[start:stop]
        if scanner is None:
            found = reader.feed(piece)
            if found is None:
                continue
            form, piece = found
            scanner = FileScanner("b")
        scanner.feed(piece)
    if scanner is not None:
        scanner.ending()
    return form


@given(
    st.binary(min_size=1, max_size=120),
    st.integers(1, 50),
    st.sampled_from([SIGNED, SIGNED_TRAILER]),
    st.integers(0, 2000),
    st.integers(0, 2000),
    st.integers(0, 60),
    st.lists(st.integers(0, 2000), max_size=5),
)
@fuzzing(400)
def test_no_piece_of_a_signed_body_can_be_moved_doubled_or_left_out(
    trials: Trials, body: bytes, chunk: int, form: str, at: int, to: int, length: int, cuts: list[int]
) -> None:
    head = [("authorization", f"x Signature={'a' * 64}"), ("x-amz-date", "20260101T000000Z")]
    trailer = ("x-amz-checksum-crc32", checksum("crc32", body)) if form == SIGNED_TRAILER else None
    signing = signing_of(head, "secret")
    wire = Chunked(body, form, trailer, chunk).encode(signing)
    at, to = at % len(wire), to % len(wire)
    piece = wire[at : at + length]
    changed = {0: wire[:at] + wire[at + length :], 1: wire[:to] + piece + wire[to:], 2: wire}[(at + to) % 3]
    names = frozenset([trailer[0]]) if trailer else frozenset()
    decoder = ChunkedDecoder(len(body), signing, names, trailers_expected=form == SIGNED_TRAILER)
    got = bytearray()
    saw = "the body"
    try:
        edges = [0, *sorted(cut % (len(changed) + 1) for cut in cuts), len(changed)]
        for start, stop in pairwise(edges):
            for given_out in decoder.feed(changed[start:stop]):
                got += given_out
        decoder.finish()
        assert bytes(got) == body
        whole = True
    except S3Error:
        saw, whole = "refused before its last byte", False
    assert whole or (len(got) < len(body) and changed != wire)
    trials.record("fuzz", "signed aws-chunked bodies, pieces moved, doubled, left out", saw)


@given(st.data())
@fuzzing(400)
def test_a_request_signed_by_botocore_and_changed_anywhere_is_refused(trials: Trials, data: st.DataObject) -> None:
    """Exceptions are changes without a meaning by S3's own rules: white space in headers, and the spelling of an
    escape."""
    request, at = signed_by_boto(
        "GET",
        "/bucket/a%20key",
        "list-type=2&prefix=a%2Fb",
        {"x-amz-meta-a": "some value", "range": "bytes=0-1"},
        presign_s=data.draw(st.sampled_from([None, 60])),
    )
    assert verified(request, at) is not None
    places = ["method", "raw_path", "raw_query", *range(len(request.headers))]
    place = data.draw(st.sampled_from(places))
    text = getattr(request, place) if isinstance(place, str) else request.headers[place][1]
    where = data.draw(st.integers(0, len(text)))
    letters = data.draw(st.sampled_from(["x", "/", "%", "&", "=", ",", ";", "0", "..", "//", "é", "%00"]))
    changed = text[:where] + letters + text[where + data.draw(st.integers(0, 1)) :]
    if changed == text or (isinstance(place, int) and request.headers[place][0] == "content-length"):
        return
    fields = {name: getattr(request, name) for name in ("method", "raw_path", "raw_query", "headers")}
    if isinstance(place, str):
        fields[place] = changed
    else:
        headers = list(request.headers)
        headers[place] = (headers[place][0], changed)
        fields["headers"] = tuple(headers)
    if place == "raw_query" and _meaning(changed) == _meaning(text):
        return
    try:
        identity = verified(SignedRequest(**fields), at)
    except S3Error:
        identity = None
    assert identity is None, f"{place}: {text!r} became {changed!r}, and was let in"
    trials.record("fuzz", "requests signed by botocore, one place changed", "refused")


def _meaning(query: str) -> list[tuple[str, str]]:
    from outrider.core.s3.encoding import parse_query

    return sorted(parse_query(query))


def test_a_cacheable_read_is_of_a_get_or_head_alone() -> None:
    for method in ("PUT", "POST", "DELETE", "PATCH", "OPTIONS", "get", "TRACE"):
        assert classify(method, "/bkt/k", ()).kind is OperationKind.FORWARD
