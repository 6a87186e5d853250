"""The memo of verified presigned URLs: each is verified once, for its own request and until it expires."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from outrider.core.auth.grants import Client
from outrider.core.auth.verification import SignedRequest, verify
from outrider.core.errors import AccessDenied, S3Error
from outrider.core.s3.encoding import amz_date_seconds
from outrider.http import access
from outrider.http.access import SigV4
from tests.support.fakes import FakeClock

HOST = "127.0.0.1:9480"


def presigned(clock: FakeClock, *, expires_s: int = 60) -> SignedRequest:
    request = AWSRequest("GET", f"http://{HOST}/bkt/train/a%20b.tar")
    S3SigV4QueryAuth(Credentials("AK", "secret"), "s3", "us-east-1", expires=expires_s).add_auth(request)
    url = urlsplit(request.url)
    signed_at = amz_date_seconds(dict(parse_qsl(url.query))["X-Amz-Date"])
    assert signed_at is not None
    clock.now = signed_at
    return SignedRequest("GET", url.path, url.query, (("host", HOST), ("range", "bytes=0-9")))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def door(clock: FakeClock) -> SigV4:
    made = SigV4(clock)
    made.renew({"AK": Client("team", "AK", ())}, {"AK": "secret"}, None)
    return made


def test_a_url_is_verified_once_for_all_its_ranges(
    door: SigV4, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = presigned(clock)
    looked: list[SignedRequest] = []

    def counted(request: SignedRequest, **options: Any) -> Any:
        looked.append(request)
        return verify(request, **options)

    monkeypatch.setattr(access, "verify", counted)
    for start in range(10):
        who = door.identify(replace(asked, headers=(("host", HOST), ("range", f"bytes={start}-9"))), None)
        assert who.client is not None
        assert who.client.access_key == "AK"
    assert len(looked) == 1


def test_a_verified_url_expires_all_the_same(door: SigV4, clock: FakeClock) -> None:
    asked = presigned(clock)
    door.identify(asked, None)
    clock.advance(60)
    door.identify(asked, None)
    clock.advance(0.5)
    with pytest.raises(AccessDenied, match="expired"):
        door.identify(asked, None)


def test_a_verified_url_is_good_for_that_very_request_alone(door: SigV4, clock: FakeClock) -> None:
    asked = presigned(clock)
    door.identify(asked, None)
    others = [
        replace(asked, method="HEAD"),
        replace(asked, raw_path="/bkt/train/c.tar"),
        replace(asked, raw_query=asked.raw_query + "&versionId=1"),
        replace(asked, headers=(("host", "elsewhere"),)),
        replace(asked, headers=(("host", HOST), ("host", HOST))),
        replace(asked, headers=(("host", HOST), ("x-amz-server-side-encryption-customer-key", "k"))),
        replace(asked, headers=(("host", HOST), ("authorization", "AWS4-HMAC-SHA256 Credential=AK"))),
    ]
    for other in others:
        with pytest.raises(S3Error):
            door.identify(other, None)
