"""Signature Version 2 URLs against those that botocore and boto3 make."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.auth import HmacV1QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from outrider.core import errors
from outrider.core.auth.sigv4 import SigningKeys
from outrider.core.auth.verification import Identity, SignedRequest, verify
from outrider.core.s3.body_integrity import UNSIGNED
from outrider.core.s3.encoding import encode_path, encode_query, parse_query

ACCESS, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
HOST = "127.0.0.1:9480"

any_text = st.text(st.characters(exclude_categories=()), max_size=40)
object_keys = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30),
    st.lists(st.sampled_from(["..", "", "a b", "+", "%2F", "~", "!(')*", "é", "=&?#"]), min_size=1).map("/".join),
)


def ask(request: SignedRequest, now: float | None = None, bucket_of_host: str | None = None) -> Identity | None:
    at = expiry_of(request) if now is None else now
    secrets = {ACCESS: SECRET}
    return verify(request, secret_of=secrets.get, now=at, keys=SigningKeys(), bucket_of_host=bucket_of_host)


def expiry_of(request: SignedRequest) -> int:
    return int(dict(parse_query(request.raw_query))["Expires"])


def of_url(url: str, method: str = "GET", **headers: str) -> SignedRequest:
    parts = urlsplit(url)
    named = ((name.replace("_", "-"), value) for name, value in headers.items())
    return SignedRequest(method, parts.path, parts.query, (("host", parts.netloc), *named))


def presigned(
    method: str = "GET", path: str = "/bucket/key", query: str = "", headers: dict[str, str] | None = None
) -> SignedRequest:
    request = AWSRequest(method, f"http://{HOST}{path}" + (f"?{query}" if query else ""), headers or {})
    HmacV1QueryAuth(Credentials(ACCESS, SECRET), 60).add_auth(request)
    return of_url(request.url, method, **(headers or {}))


def client(style: str = "path", token: str | None = None) -> Any:
    config = Config(signature_version="s3", s3={"addressing_style": style})
    return boto3.client(
        "s3", endpoint_url="http://s3.test:9480", region_name="us-east-1", aws_access_key_id=ACCESS,
        aws_secret_access_key=SECRET, aws_session_token=token, config=config,
    )  # fmt: skip


def plus(request: SignedRequest, addition: str) -> SignedRequest:
    return replace(request, raw_query=f"{request.raw_query}&{addition}")


def test_the_published_example_is_accepted_for_its_bucket_only() -> None:
    request = of_url(
        "http://johnsmith.s3.amazonaws.com/photos/puppy.jpg"
        f"?AWSAccessKeyId={ACCESS}&Signature=NpgCjnDzrM%2BWFzoENXmpNDUsSn8%3D&Expires=1175139620"
    )
    identity = ask(request, bucket_of_host="johnsmith")
    assert identity == Identity(ACCESS, UNSIGNED, "NpgCjnDzrM+WFzoENXmpNDUsSn8=", b"", "", "")
    for bucket in (None, "another"):
        with pytest.raises(errors.SignatureDoesNotMatch):
            ask(request, bucket_of_host=bucket)


@given(object_keys)
def test_any_key_that_botocore_presigns_is_accepted(key: str) -> None:
    assert ask(presigned(path="/bucket/" + encode_path(key))) is not None


@pytest.mark.parametrize("style", ["path", "virtual"])
@pytest.mark.parametrize(
    ("operation", "parameters"),
    [
        ("get_object", {"Key": "a b/é+.tar"}),
        (
            "get_object",
            {"Key": "k", "VersionId": "v/1", "ResponseContentDisposition": 'attachment; filename="a b&c.txt"'},
        ),
        ("head_object", {"Key": "k"}),
        ("put_object", {"Key": "k"}),
        ("delete_object", {"Key": "k"}),
        ("upload_part", {"Key": "k", "PartNumber": 3, "UploadId": "u"}),
        ("get_object_acl", {"Key": "k"}),
        ("list_objects_v2", {"Prefix": "a/b c"}),
        ("head_bucket", {}),
        ("get_bucket_location", {}),
    ],
)
def test_a_url_that_boto3_presigns_is_accepted(operation: str, parameters: dict[str, Any], style: str) -> None:
    method = {"head": "HEAD", "put": "PUT", "delete": "DELETE", "upload": "PUT"}.get(operation.split("_")[0], "GET")
    url = client(style).generate_presigned_url(operation, {"Bucket": "bucket", **parameters}, 60)
    assert "AWSAccessKeyId=" in url
    request = of_url(url, method)
    # boto3 requests a location in path style, whatever style it is set to.
    assert ask(request, bucket_of_host="bucket" if urlsplit(url).netloc.startswith("bucket.") else None) is not None


def test_a_session_token_in_the_url_is_signed() -> None:
    request = of_url(client(token="tok/en+").generate_presigned_url("get_object", {"Bucket": "b", "Key": "k"}))
    assert ask(request) is not None
    with pytest.raises(errors.SignatureDoesNotMatch):
        ask(replace(request, raw_query=request.raw_query.replace("tok", "kot")))


def test_signed_metadata_may_come_in_the_url_in_a_header_or_in_both() -> None:
    parameters = {"Bucket": "b", "Key": "k", "Metadata": {"a": "1  2"}}
    both = of_url(client().generate_presigned_url("put_object", parameters), "PUT", x_amz_meta_a="1  2")
    in_url = replace(both, headers=both.headers[:1])
    pairs = [pair for pair in parse_query(both.raw_query) if pair[0] != "x-amz-meta-a"]
    in_header = replace(both, raw_query=encode_query(pairs))
    for request in (both, in_url, in_header):
        assert ask(request) is not None
    with pytest.raises(errors.SignatureDoesNotMatch):
        ask(replace(in_header, headers=both.headers[:1]))
    with pytest.raises(errors.SignatureDoesNotMatch):
        ask(replace(both, headers=(*both.headers[:1], ("x-amz-meta-a", "3"))))


@pytest.mark.parametrize("store", ["goog", "minio", "oss", "obs", "cos"])
def test_another_stores_header_is_refused_since_nothing_protects_it(store: str) -> None:
    request = of_url(client().generate_presigned_url("get_object", {"Bucket": "b", "Key": "k"}))
    assert ask(request) is not None
    with pytest.raises(errors.AccessDenied, match="does not protect the header"):
        ask(replace(request, headers=(*request.headers, (f"x-{store}-acl", "1"))))


def test_content_type_and_md5_are_signed_as_sent() -> None:
    request = presigned("PUT", headers={"content-type": "a/b", "content-md5": "1B2M2Y8AsgTpgAmY7PhCfg=="})
    assert ask(request) is not None
    for name in ("content-type", "content-md5"):
        with pytest.raises(errors.SignatureDoesNotMatch):
            ask(replace(request, headers=tuple(pair for pair in request.headers if pair[0] != name)))


@pytest.mark.parametrize("spelling", ["acl", "acl="])
def test_an_empty_subresource_may_be_signed_either_way(spelling: str) -> None:
    request = presigned(query=spelling)
    assert ask(request) is not None
    assert ask(replace(request, raw_query=request.raw_query.replace("acl", "acl=").replace("==&", "=&"))) is not None


def test_a_url_expires() -> None:
    request = presigned()
    assert ask(request, expiry_of(request)) is not None
    with pytest.raises(errors.AccessDenied, match="Request has expired"):
        ask(request, expiry_of(request) + 1)


@pytest.mark.parametrize(
    "change",
    [{"method": "DELETE"}, {"raw_path": "/bucket/key2"}, {"raw_path": "/bucket/x/../key"}, {"raw_path": "/key"}],
)
def test_a_changed_method_or_path_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(errors.SignatureDoesNotMatch):
        ask(replace(presigned(), **change))


@pytest.mark.parametrize("addition", ["acl", "versionId=1", "response-content-type=a", "x-amz-acl=public", "uploads"])
def test_an_added_subresource_is_refused(addition: str) -> None:
    with pytest.raises(errors.SignatureDoesNotMatch):
        ask(plus(presigned("PUT"), addition))


@pytest.mark.parametrize("addition", ["attributes", "publicAccessBlock", "ACL", "invented-tomorrow=1", "expires=9"])
def test_a_parameter_that_sigv2_leaves_unsigned_is_refused_unless_known_to_be_harmless(addition: str) -> None:
    with pytest.raises(errors.AccessDenied, match="does not protect"):
        ask(plus(presigned(), addition))
    assert ask(plus(presigned(path="/bucket/"), "prefix=x&x-id=ListObjects")) is not None


def test_an_added_amz_header_is_refused() -> None:
    request = presigned("PUT")
    with pytest.raises(errors.SignatureDoesNotMatch):
        ask(replace(request, headers=(*request.headers, ("x-amz-copy-source", "/secret/key"))))


def test_a_line_break_may_not_make_two_headers_of_one() -> None:
    request = presigned("PUT", headers={"x-amz-meta-a": "1", "x-amz-meta-b": "2"})
    bare = replace(request, headers=request.headers[:1])
    assert ask(bare) is not None
    merged = bare.raw_query.replace("&x-amz-meta-b=2", "").replace(
        "x-amz-meta-a=1", "x-amz-meta-a=1%0Ax-amz-meta-b%3A2"
    )
    with pytest.raises(errors.AccessDenied, match="line break"):
        ask(replace(bare, raw_query=merged))


@pytest.mark.parametrize("missing", ["AWSAccessKeyId", "Signature", "Expires"])
def test_an_incomplete_url_is_refused(missing: str) -> None:
    request = presigned()
    pairs = [pair for pair in parse_query(request.raw_query) if pair[0] != missing]
    with pytest.raises(errors.AccessDenied, match="requires the Signature"):
        ask(replace(request, raw_query=encode_query(pairs)), 0)


@pytest.mark.parametrize("expires", ["", "tomorrow", "-1", "1e9", "１", "9" * 16])
def test_an_expiry_that_is_no_time_is_refused(expires: str) -> None:
    with pytest.raises(errors.AccessDenied, match="Invalid date"):
        ask(of_url(f"http://h/b/k?AWSAccessKeyId={ACCESS}&Signature=x&Expires={expires}"), 0)


def test_a_parameter_of_the_signature_given_twice_is_refused() -> None:
    with pytest.raises(errors.AccessDenied, match="once"):
        ask(plus(presigned(), "Expires=9999999999"), 0)


def test_an_unknown_key_is_refused_as_such() -> None:
    with pytest.raises(errors.InvalidAccessKeyId):
        ask(of_url("http://h/b/k?AWSAccessKeyId=nobody&Signature=x&Expires=1"), 0)


def test_signed_chunks_cannot_come_by_sigv2() -> None:
    with pytest.raises(errors.InvalidRequest, match="signed chunks"):
        ask(presigned("PUT", headers={"x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}))


def test_the_authorization_header_form_is_not_taken() -> None:
    with pytest.raises(errors.InvalidRequest, match="Please use AWS4-HMAC-SHA256"):
        ask(SignedRequest("GET", "/b/k", "", (("authorization", f"AWS {ACCESS}:sig="),)), 0)


@given(any_text, any_text, st.lists(st.tuples(st.sampled_from(["acl", "Signature", "Expires", "x-amz-a"]), any_text)))
def test_garbage_is_an_s3_error(method: str, path: str, extra: list[tuple[str, str]]) -> None:
    query = f"AWSAccessKeyId={ACCESS}&Signature=x&Expires=9&" + "&".join(f"{name}={value}" for name, value in extra)
    with pytest.raises(errors.S3Error):
        ask(SignedRequest(method, path, query, ()), 0)
