"""Real clients read, write, list and delete through the proxy with the results that they have at the bucket.

boto3 writes at the bucket what a client reads through the proxy, and reads there what it wrote, so that two mistakes of
the proxy cannot hide each other. A client is asked at the bucket, too, where its answer is its own: for what does not
exist.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.bucket import Bucket
from tests.support.client_access import MIB, Access, S3Client, require
from tests.support.proxy import Keys, Proxy
from tests.support.s3_clients import LIBRARIES, TOOLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.support.tls import Certificate

NAME = "clients"
KEYS: Keys = ("CLIENTSKEY", "clients/secret+one")
CLIENTS_FILE = f"""
[[client]]
name = "clients"
access_key = "{KEYS[0]}"
secret_key = "{KEYS[1]}"
grants = [{{bucket = "{NAME}", access = "write"}}]
"""

# Above 8 MiB most clients read and write in parts.
LARGE = 9 * MIB
# The bytes that the bucket sends beside objects: a listing of one key, an error. This is far below any size that is
# worth a cache.
SMALL_XML_BYTES = 4096
AWKWARD = "with space/ünïcode 日本語-😀/plus+and%25/100%;x=y&z,it's (1)!.tar"
# A run over the edges at 4 and 8 MiB, and the last byte.
RANGES = ((4 * MIB - 5, 8 * MIB + 5), (LARGE - 1, LARGE))


def ramp(size: int, start: int = 0) -> bytes:
    """251 is prime, so bytes that are shifted by any block, or by another `start`, show."""
    return (bytes(range(251)) * (size // 251 + 2))[start : start + size]


def sha256(body: bytes) -> str:
    """A digest that differs is reported in one line; 20 MiB of bytes are not."""
    return hashlib.sha256(body).hexdigest()


@pytest.fixture(scope="module")
def proxies(
    bucket: Bucket, certificate: Certificate, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Proxy]]:
    """`https` checks signatures too: the SDKs send unsigned chunks with a trailer only over https."""
    bucket.make_bucket(NAME)
    clients = tmp_path_factory.mktemp("clients") / "clients.toml"
    clients.write_text(CLIENTS_FILE)
    signed: dict[str, Any] = {"auth": "sigv4", "clients": clients}
    tls: dict[str, Any] = {"tls_cert": certificate.chain, "tls_key": certificate.key}
    with Proxy(bucket) as loopback, Proxy(bucket, **signed) as sigv4, Proxy(bucket, **signed, **tls) as https:
        yield {"loopback": loopback, "sigv4": sigv4, "https": https}


CLIENTS = (*LIBRARIES, *TOOLS)
WITH_RANGES = [client for client in CLIENTS if "read_range" not in client.cannot]


def in_mode(mode: str, kinds: Iterable[type[S3Client]] = CLIENTS) -> pytest.MarkDecorator:
    """Every client in the mode that adds most: `https` checks signatures as `sigv4` does, and `loopback` accepts all
    that `sigv4` does."""
    pairs = [(kind, mode) for kind in kinds]
    return pytest.mark.parametrize(
        ("kind", "mode"), pairs, indirect=True, ids=[f"{kind.name}-{mode}" for kind in kinds]
    )


@pytest.fixture(scope="module")
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def proxy(proxies: dict[str, Proxy], mode: str) -> Proxy:
    return proxies[mode]


@pytest.fixture(scope="module")
def kind(request: pytest.FixtureRequest) -> type[S3Client]:
    client: type[S3Client] = request.param
    require(client.needs, client.runs)
    return client


@pytest.fixture(scope="module")
def stored(bucket: Bucket) -> Iterator[Any]:
    """boto3 at the bucket itself."""
    with contextlib.closing(bucket.client()) as client:
        yield client


@pytest.fixture(scope="module")
def direct(kind: type[S3Client], bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Client]:
    """The client at the bucket itself."""
    scratch = tmp_path_factory.mktemp("direct")
    with contextlib.closing(kind(Access(bucket.endpoint, (bucket.access_key, bucket.secret_key), scratch))) as client:
        yield client


@pytest.fixture(scope="module")
def through(
    kind: type[S3Client], mode: str, proxy: Proxy, certificate: Certificate, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[S3Client]:
    """The same client at the proxy. In `loopback` mode its keys are unknown to the bucket."""
    scratch = tmp_path_factory.mktemp("through")
    authority = certificate.authority if mode == "https" else None
    with contextlib.closing(kind(Access(proxy.endpoint, KEYS, scratch, authority))) as client:
        yield client


@pytest.fixture
def prefix(request: pytest.FixtureRequest, kind: type[S3Client], mode: str) -> str:
    """A prefix for one test's objects alone, so that each test begins cold."""
    return f"{request.node.originalname}/{kind.name}/{mode}"


def sent_for(proxy: Proxy) -> float:
    """The body bytes that the bucket has sent so far."""
    proxy.settle()
    return proxy.metric("outrider_origin_bytes_total")


def outcome(client: S3Client, key: str) -> bytes | str:
    """The result of a read, or the kind of error with which it ends."""
    try:
        return client.read(NAME, key)
    except Exception as error:  # noqa: BLE001 - each client has errors of its own
        return type(error).__name__


@in_mode("loopback")
def test_a_read_gives_the_bytes_of_the_bucket_cold_and_warm(
    stored: Any, direct: S3Client, through: S3Client, proxy: Proxy, prefix: str
) -> None:
    stored.put_object(Bucket=NAME, Key=f"{prefix}/empty", Body=b"")
    if "read_empty" in direct.cannot:
        assert outcome(through, f"{prefix}/empty") == outcome(direct, f"{prefix}/empty") != b""
    else:
        assert through.read(NAME, f"{prefix}/empty") == b""
    # The key has a folder of its own. Where the last object of a folder was small, the proxy's first whole read of a
    # large one with checksums requests all of it at once. It drops that request when it sees the size, and requests
    # blocks instead.
    body, key = ramp(LARGE), f"{prefix}/large/ramp"
    stored.put_object(Bucket=NAME, Key=key, Body=body)
    began = sent_for(proxy)
    assert sha256(through.read(NAME, key)) == sha256(body), "cold"
    cold = sent_for(proxy)
    assert cold - began <= LARGE + SMALL_XML_BYTES, "filled once, however many connections read"
    assert sha256(through.read(NAME, key)) == sha256(body), "warm"
    assert sent_for(proxy) - cold <= SMALL_XML_BYTES, "a warm read takes nothing from the bucket"


@in_mode("https")
def test_a_write_through_the_proxy_is_in_the_bucket_and_replaces_what_was_cached(
    stored: Any, direct: S3Client, through: S3Client, prefix: str
) -> None:
    before = b""
    for size in (1000, LARGE, 0):
        body = ramp(size, start=size % 100)
        through.write(NAME, f"{prefix}/ramp", body)
        assert sha256(stored.get_object(Bucket=NAME, Key=f"{prefix}/ramp")["Body"].read()) == sha256(body)
        if not size and "read_empty" in direct.cannot:
            assert outcome(through, f"{prefix}/ramp") == outcome(direct, f"{prefix}/ramp") not in (before, body)
        else:
            read = through.read(NAME, f"{prefix}/ramp")
            assert sha256(read) == sha256(body), "after our 2xx no read sees the older version"
        before = body


@in_mode("sigv4", WITH_RANGES)
def test_a_range_gives_the_bytes_of_the_bucket_cold_and_warm(stored: Any, through: S3Client, prefix: str) -> None:
    body = ramp(LARGE)
    stored.put_object(Bucket=NAME, Key=f"{prefix}/ramp", Body=body)
    for start, stop in (*RANGES, RANGES[0]):
        got = through.read_range(NAME, f"{prefix}/ramp", start, stop)
        assert sha256(got) == sha256(body[start:stop]), f"[{start}, {stop})"


@in_mode("sigv4")
def test_keys_of_any_characters_are_written_read_listed_and_deleted(
    stored: Any, direct: S3Client, through: S3Client, prefix: str
) -> None:
    theirs, ours = f"{prefix}/bucket/{AWKWARD}", f"{prefix}/proxy/{AWKWARD}"
    for key in (theirs, f"{prefix}/a", f"{prefix}/deep/er/d"):
        stored.put_object(Bucket=NAME, Key=key, Body=b"of the bucket")
    assert through.read(NAME, theirs) == b"of the bucket"
    through.write(NAME, ours, b"of the proxy")
    assert stored.get_object(Bucket=NAME, Key=ours)["Body"].read() == b"of the proxy"
    keys = {theirs, ours, f"{prefix}/a", f"{prefix}/deep/er/d"}
    assert through.list(NAME, f"{prefix}/") == keys

    through.delete(NAME, theirs)
    assert through.list(NAME, f"{prefix}/") == keys - {theirs}
    # rclone reports an empty listing by an empty answer.
    assert outcome(through, theirs) == outcome(direct, theirs) != b"of the bucket"
