"""Signature Version 4 against botocore, which makes the signatures, and against the examples that AWS published."""

from __future__ import annotations

from dataclasses import replace
from email.utils import parsedate_to_datetime
from hashlib import sha256

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given
from hypothesis import strategies as st

from outrider.core import errors
from outrider.core.auth.sigv4 import Credentials, SigningKeys, sign_headers
from outrider.core.auth.verification import SignedRequest
from outrider.core.s3.body_integrity import UNSIGNED, PayloadForm, PayloadRule
from outrider.core.s3.encoding import encode_path, encode_query, encode_url_query, parse_query
from tests.support.signed_requests import (
    AT,
    AWS,
    EMPTY,
    EXAMPLES,
    HOST,
    KEYS,
    PRESIGNED_EXAMPLE,
    ask,
    awkward_keys,
    header_values,
    presigned_by_hand,
    queries,
    signed_by_boto,
    with_header,
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_published_header_examples_are_accepted(name: str) -> None:
    identity = ask(EXAMPLES[name])
    assert identity is not None
    assert identity.access_key == AWS.access_key
    assert identity.scope == "20130524/us-east-1/s3/aws4_request"
    assert identity.amz_date == "20130524T000000Z"
    assert identity.payload.form is PayloadForm.HASHED


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_published_requests_get_the_published_signatures(name: str) -> None:
    request = EXAMPLES[name]
    given_headers = dict(request.headers)
    ours = {"authorization", "host", "x-amz-date", "x-amz-content-sha256"}
    added = sign_headers(
        method=request.method,
        host=given_headers["host"],
        path=encode_path(request.raw_path),
        query=parse_query(request.raw_query),
        headers={name: value for name, value in given_headers.items() if name not in ours},
        payload_hash=given_headers["x-amz-content-sha256"],
        credentials=AWS,
        region="us-east-1",
        now=AT,
        keys=KEYS,
    )
    assert added["authorization"].rpartition("=")[2] == given_headers["authorization"].rpartition("=")[2]


def test_the_published_presigned_example_is_accepted_until_it_expires() -> None:
    identity = ask(PRESIGNED_EXAMPLE, now=AT + 86400)
    assert identity is not None
    assert identity.payload == UNSIGNED
    with pytest.raises(errors.AccessDenied, match="Request has expired"):
        ask(PRESIGNED_EXAMPLE, now=AT + 86401)


@given(key=awkward_keys, query=queries, value=header_values, body=st.binary(max_size=9))
def test_any_request_that_botocore_signs_in_headers_is_accepted(
    key: str, query: list[tuple[str, str]], value: str, body: bytes
) -> None:
    headers = {"x-amz-meta-x": value, "Range": "bytes=0-9", "Content-Type": "text/plain", "User-Agent": "boto"}
    request, at = signed_by_boto("PUT", "/bucket/" + encode_path(key), encode_query(query), headers, body)
    identity = ask(request, at)
    assert identity is not None
    assert identity.payload == PayloadRule(PayloadForm.HASHED, sha256(body).hexdigest())


@given(key=awkward_keys, query=queries)
def test_any_request_that_botocore_presigns_is_accepted(key: str, query: list[tuple[str, str]]) -> None:
    pairs = list(dict(query).items())  # botocore keeps one value of each name
    request, at = signed_by_boto("GET", "/bucket/" + encode_path(key), encode_query(pairs), presign_s=60)
    assert ask(request, at + 60) is not None


@given(key=awkward_keys, query=queries, value=header_values)
def test_we_sign_as_botocore_does(key: str, query: list[tuple[str, str]], value: str) -> None:
    headers = {"range": "bytes=0-9", "content-type": "text/plain", "x-amz-meta-x": value, "if-match": '"e"'}
    path = "/bucket/" + encode_path(key)
    request, at = signed_by_boto("GET", path, encode_query(query), dict(headers))
    added = sign_headers(
        method="GET",
        host=HOST,
        path=path,
        query=query,
        headers=headers | {"user-agent": "x", "connection": "close", "expect": "100-continue", "content-length": "7"},
        payload_hash=EMPTY,
        credentials=AWS,
        region="eu-west-1",
        now=at,
        keys=KEYS,
    )
    assert added["authorization"] == dict(request.headers)["authorization"]


def test_a_session_token_is_sent_signed_and_verified() -> None:
    added = sign_headers(
        method="GET",
        host=HOST,
        path="/b/k",
        query=[],
        headers={},
        payload_hash="UNSIGNED-PAYLOAD",
        credentials=replace(AWS, session_token="tok"),
        region="r",
        now=AT,
        keys=KEYS,
    )
    assert added["x-amz-security-token"] == "tok"
    request = SignedRequest("GET", "/b/k", "", (("host", HOST), *added.items()))
    identity = ask(request)
    assert identity is not None
    assert identity.payload == UNSIGNED
    with pytest.raises(errors.SignatureDoesNotMatch):
        ask(with_header(request, "x-amz-security-token", "other"))


@given(st.text(st.characters(exclude_categories=["Cs"])), st.binary(max_size=20))
def test_a_path_survives_its_escapes(text: str, raw: bytes) -> None:
    assert parse_query(encode_path(text).replace("/", "%2F")) == ([(text, "")] if text else [])
    assert encode_path(raw) == encode_path(raw.decode("utf-8", "surrogateescape"))


@given(queries)
def test_a_query_survives_its_escapes_but_for_the_order_if_it_is_signed(query: list[tuple[str, str]]) -> None:
    assert sorted(parse_query(encode_query(query))) == sorted(query)
    assert parse_query(encode_url_query(query)) == query


def test_a_query_is_read_as_s3_reads_it() -> None:
    assert parse_query("acl") == parse_query("acl=") == [("acl", "")]
    assert parse_query("a=1&&a=2&=3&b=x=y") == [("a", "1"), ("a", "2"), ("", "3"), ("b", "x=y")]
    assert parse_query("p=a+b%2Bc%20d") == [("p", "a b+c d")]
    assert encode_query([("p", "a b+c"), ("acl", ""), ("p", "~")]) == "acl=&p=a%20b%2Bc&p=~"


@pytest.mark.parametrize(
    ("wire", "signed"), [("/b/a!(b)*'", "/b/a%21%28b%29%2A%27"), ("/b/%7Ea%2fb", "/b/~a/b"), ("/b/é", "/b/%C3%A9")]
)
def test_a_path_may_be_spelt_otherwise_on_the_wire_than_under_the_signature(wire: str, signed: str) -> None:
    request, at = signed_by_boto(path=signed)
    assert ask(replace(request, raw_path=wire), at) is not None


def test_a_path_signed_just_as_it_was_sent_is_accepted() -> None:
    request, at = signed_by_boto(path="/b/a!(b)%2fc%zz")
    assert ask(request, at) is not None


def test_header_values_are_trimmed_folded_and_joined() -> None:
    request, at = signed_by_boto(headers={"x-amz-meta-x": "a b,c", "accept": "x"})
    cached = [pair for pair in request.headers if pair[0] != "x-amz-meta-x"]
    twice = replace(request, headers=(*cached, ("x-amz-meta-x", "  a \t  b "), ("x-amz-meta-x", "c")))
    assert ask(twice, at) is not None


def test_header_values_beyond_ascii_keep_their_own_spaces() -> None:
    value = "é\u00a0\u00a0ü"
    headers = {"x-amz-meta-x": value}
    added = sign_headers(
        method="GET", host=HOST, path="/b/k", query=[], headers=headers, payload_hash=EMPTY, credentials=AWS,
        region="r", now=AT, keys=KEYS,
    )  # fmt: skip
    request = SignedRequest("GET", "/b/k", "", (("host", HOST), *headers.items(), *added.items()))
    assert ask(request) is not None
    with pytest.raises(errors.SignatureDoesNotMatch):
        ask(with_header(request, "x-amz-meta-x", "é ü"))


def test_unsigned_headers_of_other_kinds_are_let_through() -> None:
    request, at = signed_by_boto(presign_s=60)
    assert ask(with_header(request, "range", "bytes=5-"), at) is not None
    assert ask(with_header(request, "x-amzn-trace-id", "1"), at) is not None


def test_a_presigned_url_may_sign_the_payload_in_a_header_or_in_the_query() -> None:
    in_header = presigned_by_hand({"host": HOST, "x-amz-content-sha256": EMPTY}, EMPTY)
    in_query = presigned_by_hand({"host": HOST}, EMPTY, f"X-Amz-Content-Sha256={EMPTY}")
    for request in (in_header, in_query):
        identity = ask(request)
        assert identity is not None
        assert identity.payload == PayloadRule(PayloadForm.HASHED, EMPTY)


def test_a_date_header_serves_when_x_amz_date_is_absent() -> None:
    request = AWSRequest("GET", f"http://{HOST}/b/k", {"Date": "to be replaced"})
    S3SigV4Auth(BotoCredentials(AWS.access_key, AWS.secret_key), "s3", "r").add_auth(request)
    wire = SignedRequest("GET", "/b/k", "", (("host", HOST), *((n.lower(), v) for n, v in request.headers.items())))
    date = dict(wire.headers)["date"]
    at = parsedate_to_datetime(date).timestamp()
    assert ask(wire, at) is not None
    # botocore writes "-0000" where HTTP says GMT.
    renamed = with_header(wire, "date", date.replace("-0000", "GMT"))
    with pytest.raises(errors.SignatureDoesNotMatch):
        ask(renamed, at)


def test_anonymous_is_not_an_error() -> None:
    assert ask(SignedRequest("GET", "/b/k", "prefix=x&X-Amz-Date=1&Expires=3", (("host", HOST),))) is None


def test_an_access_key_buffer_bytes_slashes() -> None:
    added = sign_headers(
        method="GET", host=HOST, path="/b/k", query=[], headers={}, payload_hash=EMPTY,
        credentials=Credentials("minio/team/7", "hush"), region="r", now=AT, keys=KEYS,
    )  # fmt: skip
    identity = ask(SignedRequest("GET", "/b/k", "", (("host", HOST), *added.items())))
    assert identity is not None
    assert identity.access_key == "minio/team/7"


def test_signing_keys_are_bounded_and_right_after_they_were_dropped() -> None:
    keys = SigningKeys(capacity=2)
    first = keys.get(AWS.secret_key, "20150830", "us-east-1", "iam")
    for day in range(10):
        keys.get(AWS.secret_key, f"2015083{day}", "us-east-1", "iam")
        assert len(keys) <= 2
    assert keys.get(AWS.secret_key, "20150830", "us-east-1", "iam") == first


def test_secrets_do_not_show() -> None:
    identity = ask(EXAMPLES["GET object"])
    assert identity is not None
    shown = f"{AWS!r} {replace(AWS, session_token='tok-secret')!r} {KEYS!r} {identity!r}"
    assert AWS.secret_key not in shown
    assert "tok-secret" not in shown
    assert repr(identity.signing_key) not in shown
