"""Buckets of a tenant, `tenant:bucket` (Ceph's RADOS Gateway): read, signed, granted and forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from botocore.handlers import validate_bucket_name

from tests.support.odd_origin import OddOrigin
from tests.support.proxy import Keys, Proxy
from tests.support.rawhttp import Answer, ask
from tests.support.tenants import answer_to, wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket

NAME = "acme:train"
RAMP = bytes(range(251)) * 40
ACME: Keys = ("TENANTACME", "acme/secret")
ALL: Keys = ("TENANTALL", "all/secret")
CLIENTS = f"""
[[client]]
access_key = "{ACME[0]}"
secret_key = "{ACME[1]}"
grants = [{{bucket = "{NAME}", prefix = "a", access = "write"}}, {{bucket = "tr*"}}, {{bucket = "*in"}}]

[[client]]
access_key = "{ALL[0]}"
secret_key = "{ALL[1]}"
grants = [{{bucket = "*", access = "write"}}]
"""


@pytest.fixture
def origin() -> Iterator[OddOrigin]:
    with OddOrigin().on_thread() as running:
        running.put(NAME, "a", RAMP)
        running.put(NAME, "b", RAMP)
        running.put("train", "a", b"of no tenant")
        yield running


@pytest.fixture
def strict(bucket: Bucket, origin: OddOrigin, tmp_path: Path) -> Iterator[Proxy]:
    file = tmp_path / "clients.toml"
    file.write_text(CLIENTS)
    with Proxy(bucket, origin.endpoint, auth="sigv4", clients=file, freshness="immutable") as running:
        yield running


def named(proxy: Proxy, host: str, target: str) -> Answer:
    """The answer to a GET with this Host."""
    return answer_to(proxy, f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())


def boto(proxy: Proxy, keys: Keys) -> Any:
    """A client that may name such buckets, made as Ceph's manual says."""
    client = proxy.client(keys)
    client.meta.events.unregister("before-parameter-build.s3", validate_bucket_name)
    return client


@pytest.mark.parametrize("keys", [ACME, ALL])
def test_an_object_of_a_tenants_bucket_is_read_and_kept(strict: Proxy, origin: OddOrigin, keys: Keys) -> None:
    client = boto(strict, keys)
    for status in ("MISS", "HIT"):
        answer = client.get_object(Bucket=NAME, Key="a")
        assert answer["Body"].read() == RAMP
        assert answer["ResponseMetadata"]["HTTPHeaders"]["x-cache"] == status
        strict.settle()
    # Both spellings of the colon, each signed as it is sent, name the same object.
    for target in ("/acme:train/a", "/acme%3Atrain/a", "/acme%3atrain/a"):
        hit = answer_to(strict, wire(strict, keys, "GET", target))
        assert (hit.status, hit.body, hit.headers["x-cache"]) == (200, RAMP, "HIT"), target
    assert {seen.target for seen in origin.seen} == {"/acme%3Atrain/a"}


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_a_presigned_url_of_a_tenants_bucket_is_accepted(strict: Proxy, version: str) -> None:
    client = strict.client(ACME, signature_version=version)
    client.meta.events.unregister("before-parameter-build.s3", validate_bucket_name)
    url = client.generate_presigned_url("get_object", Params={"Bucket": NAME, "Key": "a"})
    answer = named(strict, strict.outrider.listen, url.removeprefix(strict.endpoint))
    assert (answer.status, answer.body) == (200, RAMP)


def test_a_glob_without_a_tenant_covers_no_tenants_bucket(strict: Proxy, origin: OddOrigin) -> None:
    assert answer_to(strict, wire(strict, ACME, "GET", "/train/a")).body == b"of no tenant"
    seen = len(origin.seen)
    for target in ("/acme:train/b", "/other:train/a", "/:train/a", "/trap:in/a", "/acme%3Atrain/b"):
        assert answer_to(strict, wire(strict, ACME, "GET", target)).code == "AccessDenied", target
    copy = [("x-amz-copy-source", "/other%3Atrain/a")]
    assert answer_to(strict, wire(strict, ACME, "PUT", "/acme:train/a", copy)).code == "AccessDenied"
    assert len(origin.seen) == seen


@pytest.mark.parametrize(("written", "read"), [
    ("/acme%3Atrain/a", "/acme%3Atrain/a"), ("/train/a", "/acme%3Atrain/a"), ("/:train/a", "/train/a"),
    ("/acme:train/a", "/train/a"),
])  # fmt: skip
def test_a_write_by_one_name_of_a_bucket_is_seen_by_each_other(
    strict: Proxy, origin: OddOrigin, written: str, read: str
) -> None:
    def cached() -> str:
        status = answer_to(strict, wire(strict, ALL, "GET", read)).headers["x-cache"]
        strict.settle()
        return str(status)

    assert [cached(), cached()] == ["MISS", "HIT"]
    before = len(origin.seen)
    answer_to(strict, wire(strict, ALL, "DELETE", written))
    cached()
    assert [seen.method for seen in origin.seen[before:]][:1] == ["DELETE"]
    assert len(origin.seen) > before + 1, "the object was served without a question to the origin"


@pytest.mark.parametrize("path", ["/a:b:c/k", "/:/k", "/acme:/k", "/acme%3A/k", "/acme:x/k", "/ac me:train/k"])
def test_no_bucket_has_such_a_name(strict: Proxy, path: str) -> None:
    assert ask(strict.address, "GET", path.replace(" ", "%20")).status in (400, 403)


def test_a_tenant_in_the_host_is_no_bucket(bucket: Bucket, origin: OddOrigin) -> None:
    with Proxy(bucket, origin.endpoint, domain=("s3.example.com",), cross_site=True) as proxy:
        assert named(proxy, "acme:train.s3.example.com", "/train/a").status == 400
        assert named(proxy, "train.s3.example.com:80", "/a").body == b"of no tenant"
