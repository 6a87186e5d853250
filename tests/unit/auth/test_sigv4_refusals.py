"""Requests that Signature Version 4 must refuse, and the error for each."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core import errors
from outrider.core.auth.verification import SignedRequest, verify
from outrider.core.s3.encoding import parse_query
from tests.support.signed_requests import (
    AT,
    AWS,
    EMPTY,
    EXAMPLES,
    GOOD,
    HOST,
    KEYS,
    PRESIGNED_EXAMPLE,
    any_text,
    ask,
    presigned_by_hand,
    signed_by_boto,
    with_header,
)


def test_a_url_from_the_future_is_not_valid_yet() -> None:
    assert ask(PRESIGNED_EXAMPLE, now=AT - 900)
    with pytest.raises(errors.AccessDenied, match="not valid yet"):
        ask(PRESIGNED_EXAMPLE, now=AT - 901)


@pytest.mark.parametrize("presign_s", [None, 60])
@pytest.mark.parametrize(
    "change",
    [
        {"method": "DELETE"},
        {"raw_path": "/bucket/key2"},
        {"raw_path": "/bucket/key/"},
        {"raw_path": "//bucket/key"},
        {"raw_path": "/bucket/x/../key"},
        {"raw_path": ""},
    ],
)
def test_a_changed_method_or_path_is_refused(change: dict[str, Any], presign_s: int | None) -> None:
    request, at = signed_by_boto(presign_s=presign_s)
    assert ask(request, at) is not None
    with pytest.raises(errors.SignatureDoesNotMatch):
        ask(replace(request, **change), at)


@pytest.mark.parametrize("presign_s", [None, 60])
@pytest.mark.parametrize("addition", ["acl", "x=1", "versionId=3", "x-amz-x=1", "X-Amz-Security-Token=t"])
def test_an_added_query_parameter_is_refused(addition: str, presign_s: int | None) -> None:
    request, at = signed_by_boto(query="x-id=GetObject", presign_s=presign_s)
    assert ask(request, at) is not None
    with pytest.raises(errors.SignatureDoesNotMatch):
        ask(replace(request, raw_query=f"{request.raw_query}&{addition}"), at)


@pytest.mark.parametrize("name", ["host", "range", "content-type", "accept-encoding", "amz-sdk-request", "x-amz-date"])
def test_every_signed_header_is_covered_and_must_arrive(name: str) -> None:
    headers = {
        "range": "bytes=0-9",
        "content-type": "a/b",
        "accept-encoding": "identity",
        "amz-sdk-request": "attempt=1",
    }
    request, at = signed_by_boto(headers=headers)
    assert ask(request, at) is not None
    other = "20130524T000000Z" if name == "x-amz-date" else "other"
    with pytest.raises((errors.SignatureDoesNotMatch, errors.AuthorizationHeaderMalformed)):
        ask(with_header(request, name, other), at)
    with pytest.raises((errors.SignatureDoesNotMatch, errors.AccessDenied)):
        ask(with_header(request, name, None), at)


def test_an_empty_header_may_not_stand_in_for_one_that_is_missing() -> None:
    request, at = signed_by_boto(headers={"if-match": ""})
    assert ask(request, at) is not None
    with pytest.raises(errors.SignatureDoesNotMatch):
        ask(with_header(request, "if-match", None), at)


@pytest.mark.parametrize("presign_s", [None, 60])
@pytest.mark.parametrize(
    "name", ["x-amz-copy-source", "x-amz-acl", "x-amz-security-token", "x-amz-meta-a", "x-goog-acl"]
)
def test_an_unsigned_amz_header_is_refused_by_name(name: str, presign_s: int | None) -> None:
    request, at = signed_by_boto("PUT", presign_s=presign_s)
    with pytest.raises(errors.AccessDenied, match=f"headers present in the request which were not signed: {name}"):
        ask(with_header(request, name, "/secret/key"), at)


def test_a_presigned_url_takes_a_payload_header_only_if_it_says_unsigned() -> None:
    request, at = signed_by_boto("PUT", presign_s=60)
    assert ask(with_header(request, "x-amz-content-sha256", "UNSIGNED-PAYLOAD"), at) is not None
    for value in (EMPTY, "STREAMING-UNSIGNED-PAYLOAD-TRAILER"):
        with pytest.raises(errors.AccessDenied):
            ask(with_header(request, "x-amz-content-sha256", value), at)


def test_two_payloads_that_disagree_are_refused() -> None:
    headers = {"host": HOST, "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER"}
    with pytest.raises(errors.InvalidArgument, match="do not agree"):
        ask(presigned_by_hand(headers, EMPTY, f"X-Amz-Content-Sha256={EMPTY}"))


def test_host_must_be_signed() -> None:
    with pytest.raises(errors.AccessDenied, match="host"):
        ask(presigned_by_hand({"accept": "x"}, "UNSIGNED-PAYLOAD"))


@pytest.mark.parametrize("skew_s", [-901, 901])
def test_a_date_too_far_from_the_clock_is_refused_as_such(skew_s: int) -> None:
    request, at = signed_by_boto()
    assert ask(request, at + (skew_s // abs(skew_s)) * 900) is not None
    with pytest.raises(errors.RequestTimeTooSkewed):
        ask(request, at + skew_s)


def test_an_unknown_key_is_refused_as_such_in_either_form() -> None:
    for presign_s in (None, 60):
        request, at = signed_by_boto(presign_s=presign_s)
        with pytest.raises(errors.InvalidAccessKeyId):
            verify(request, secret_of=lambda _: None, now=at, keys=KEYS)


def test_another_secret_is_a_wrong_signature() -> None:
    request, at = signed_by_boto()
    with pytest.raises(errors.SignatureDoesNotMatch):
        verify(request, secret_of=lambda _: "guess", now=at, keys=KEYS)


@pytest.mark.parametrize(
    ("authorization", "error"),
    [
        (GOOD.replace("/s3/", "/ec2/"), errors.AuthorizationHeaderMalformed),
        (GOOD.replace("aws4_request", "aws5_request"), errors.AuthorizationHeaderMalformed),
        (GOOD.replace("20130524", "20130525"), errors.AuthorizationHeaderMalformed),
        (GOOD.replace("/r/", "//"), errors.AuthorizationHeaderMalformed),
        (GOOD.replace(AWS.access_key, ""), errors.AuthorizationHeaderMalformed),
        (GOOD.replace("/r/", "/"), errors.AuthorizationHeaderMalformed),
        (GOOD.replace(", Signature=", ", Sig="), errors.AuthorizationHeaderMalformed),
        ("AWS4-HMAC-SHA256", errors.AuthorizationHeaderMalformed),
        (GOOD.replace("HMAC-SHA256", "ECDSA-P256-SHA256"), errors.InvalidRequest),
        ("AWS AKIA:sig=", errors.InvalidRequest),
        ("Bearer x", errors.InvalidArgument),
        ("", errors.InvalidArgument),
    ],
)
def test_each_malformed_authorization_header_gets_its_own_error(
    authorization: str, error: type[errors.S3Error]
) -> None:
    headers = (("host", HOST), ("x-amz-date", "20130524T000000Z"), ("x-amz-content-sha256", EMPTY))
    with pytest.raises(error) as caught:
        ask(SignedRequest("GET", "/b/k", "", (*headers, ("authorization", authorization))))
    if authorization.startswith("AWS "):
        assert "AWS4-HMAC-SHA256" in caught.value.text


def test_two_authorization_headers_are_one_too_many() -> None:
    request, at = signed_by_boto()
    with pytest.raises(errors.AuthorizationHeaderMalformed):
        ask(replace(request, headers=(*request.headers, ("authorization", dict(request.headers)["authorization"]))), at)


@pytest.mark.parametrize("date", ["", "yesterday", "20130230T000000Z", "20130524T000000", "２０130524T000000Z"])
def test_a_date_that_is_none_is_refused(date: str) -> None:
    with pytest.raises(errors.AccessDenied, match="valid Date"):
        ask(with_header(EXAMPLES["GET object"], "x-amz-date", date))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("X-Amz-Expires=86400", ""),
        ("X-Amz-Date=20130524T000000Z", "X-Amz-Date=2013-05-24"),
        ("X-Amz-Algorithm=AWS4-HMAC-SHA256", "X-Amz-Algorithm=AWS4-HMAC-SHA1"),
        ("%2Fs3%2F", "%2Fiam%2F"),
        ("Credential=AKIAIOSFODNN7EXAMPLE%2F20130524", "Credential=AKIAIOSFODNN7EXAMPLE%2F20130523"),
        ("X-Amz-SignedHeaders=host", "X-Amz-SignedHeaders=host&x-amz-signedheaders=host"),
        ("&X-Amz-Signature=", "&Y="),
    ],
)
def test_malformed_presigned_parameters_are_refused_as_such(old: str, new: str) -> None:
    assert old in PRESIGNED_EXAMPLE.raw_query
    with pytest.raises(errors.AuthorizationQueryParametersError):
        ask(replace(PRESIGNED_EXAMPLE, raw_query=PRESIGNED_EXAMPLE.raw_query.replace(old, new)))


@pytest.mark.parametrize(
    ("expires", "error", "words"),
    [("604801", errors.AuthorizationQueryParametersError, "less than a week"),
     ("9" * 5000, errors.AuthorizationQueryParametersError, "less than a week"),
     ("-7", errors.AccessDenied, "Request has expired"),
     ("1e3", errors.AuthorizationQueryParametersError, "should be a number"),
     ("", errors.AuthorizationQueryParametersError, "should be a number"),
     ("+7", errors.AuthorizationQueryParametersError, "should be a number"),
     ("７", errors.AuthorizationQueryParametersError, "should be a number"),
     ("0", errors.AccessDenied, "Request has expired"),
     ("00", errors.AccessDenied, "Request has expired")],
)  # fmt: skip
def test_an_expiry_that_is_none_is_refused_in_the_words_of_aws(
    expires: str, error: type[errors.S3Error], words: str
) -> None:
    query = PRESIGNED_EXAMPLE.raw_query.replace("X-Amz-Expires=86400", f"X-Amz-Expires={quote(expires)}")
    with pytest.raises(error, match=words):
        ask(replace(PRESIGNED_EXAMPLE, raw_query=query))


def test_a_later_expiry_is_not_for_the_holder_to_choose() -> None:
    longer = PRESIGNED_EXAMPLE.raw_query.replace("=86400", "=604800")
    with pytest.raises(errors.SignatureDoesNotMatch):
        ask(replace(PRESIGNED_EXAMPLE, raw_query=longer), now=AT + 90_000)


@pytest.mark.parametrize("query", [PRESIGNED_EXAMPLE.raw_query, "AWSAccessKeyId=a&Signature=b&Expires=1"])
def test_two_signatures_at_once_are_refused(query: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="Only one auth mechanism"):
        ask(replace(EXAMPLES["GET object"], raw_query=query))
    with pytest.raises(errors.InvalidArgument, match="Only one auth mechanism"):
        ask(replace(PRESIGNED_EXAMPLE, raw_query=PRESIGNED_EXAMPLE.raw_query + "&AWSAccessKeyId=a"))


def test_the_header_form_needs_the_payload_header() -> None:
    with pytest.raises(errors.InvalidRequest, match="x-amz-content-sha256"):
        ask(with_header(EXAMPLES["GET object"], "x-amz-content-sha256", None))


@given(any_text, any_text, any_text, st.lists(st.tuples(any_text, any_text), max_size=5))
def test_garbage_is_an_s3_error_or_an_answer(
    method: str, path: str, query: str, headers: list[tuple[str, str]]
) -> None:
    with suppress(errors.S3Error):
        assert ask(SignedRequest(method, path, query, tuple(headers))) is None


@given(st.data())
def test_a_good_request_with_one_garbage_field_is_an_s3_error_or_an_answer(data: st.DataObject) -> None:
    request = data.draw(st.sampled_from([*EXAMPLES.values(), PRESIGNED_EXAMPLE]))
    field = data.draw(st.sampled_from(["header", "query", "piece", "raw_path", "method"]))
    text = data.draw(any_text)
    if field == "header":
        name = data.draw(st.sampled_from([*(n for n, _ in request.headers), "authorization", "x-amz-security-token"]))
        request = with_header(request, name, text)
    elif field == "query":
        request = replace(request, raw_query=request.raw_query + text)
    elif field == "piece":
        pairs = parse_query(PRESIGNED_EXAMPLE.raw_query)
        index = data.draw(st.integers(0, len(pairs) - 1))
        pairs[index] = (pairs[index][0], text)
        request = replace(PRESIGNED_EXAMPLE, raw_query="&".join(f"{name}={value}" for name, value in pairs))
    else:
        request = replace(request, raw_path=text) if field == "raw_path" else replace(request, method=text)
    with suppress(errors.S3Error):
        ask(request)


@pytest.mark.parametrize("change", [{"raw_path": "/\ud800"}, {"raw_query": "a=%41\ud800"}, {"method": "\ud800"}])
def test_a_surrogate_that_is_no_escape_is_an_invalid_request(change: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidRequest, match="UTF-8"):
        ask(replace(EXAMPLES["GET object"], **change))
