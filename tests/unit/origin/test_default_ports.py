"""Ports that are the scheme's default: botocore leaves them out of Host and signature."""

from __future__ import annotations

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from outrider.adapters.origin.endpoint import Endpoint, moved
from outrider.core.errors import SignatureDoesNotMatch
from outrider.core.s3.encoding import object_path
from outrider.ports import OriginRequest
from tests.support.signed_requests import AWS, of_boto, with_header
from tests.support.signed_requests import ask as verified

ENDPOINTS = [
    "https://s3.example.com", "https://s3.example.com:443", "https://s3.example.com:80", "https://s3.example.com:8443",
    "http://s3.example.com", "http://s3.example.com:80", "http://s3.example.com:443", "http://s3.example.com:9000",
    "http://[::1]", "http://[::1]:80", "https://[::1]:443", "http://[::1]:9000", "http://127.0.0.1:80",
    "http://x:8080", "http://x:180",
]  # fmt: skip


def signed_host(url: str) -> str:
    """The Host that botocore signs for a request to `url`."""
    made = AWSRequest("GET", url)
    return str(S3SigV4Auth(Credentials("a", "b"), "s3", "r").headers_to_sign(made)["host"])


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_origin_gets_the_host_that_botocore_signs(endpoint: str) -> None:
    at = Endpoint.at(endpoint, "r")
    assert at.host == signed_host(f"{endpoint}/b/k")
    assert at.base + object_path("b", "k", bare=False) == f"{endpoint}/b/k".replace(endpoint.split("/")[2], at.host)


def test_a_region_hint_of_aws_is_followed_from_an_endpoint_with_a_port() -> None:
    asked = Endpoint.at("https://s3.us-east-1.amazonaws.com:443", "us-east-1")
    to = moved(OriginRequest("GET", "b", "k"), 301, (("x-amz-bucket-region", "eu-west-1"),), asked)
    assert to is not None
    assert (to.url, to.region) == ("https://s3.eu-west-1.amazonaws.com", "eu-west-1")


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("auth", [S3SigV4Auth, S3SigV4QueryAuth])
def test_the_host_may_be_sent_with_the_default_port(endpoint: str, auth: type) -> None:
    made = AWSRequest("GET", f"{endpoint}/b/k")
    auth(Credentials(AWS.access_key, AWS.secret_key), "s3", "eu-west-1").add_auth(made)
    request, at = of_boto(made)
    bare = signed_host(endpoint)
    for host in {bare, endpoint.split("/")[2]}:
        assert verified(with_header(request, "host", host), at) is not None, host
    for other in (
        f"{bare}:81",
        f"{bare}:8443",
        "other.example.com",
        "other.example.com:443",
        f"{bare}:",
        f"x{bare}",
        bare + ":443" * 5000,
    ):
        with pytest.raises(SignatureDoesNotMatch):
            verified(with_header(request, "host", other), at)
