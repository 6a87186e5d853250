"""Reads through the proxy from a real bucket: the bucket's own answers, fewer requests to it, and faults unnoticed."""

from __future__ import annotations

import http.client
import io
import os
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

from outrider.http.wire import sender
from outrider.http.wire.sender import SocketSender
from tests.support.conditions import Fault, FaultKind, Request
from tests.support.proxy import Proxy
from tests.support.rawhttp import RawConnection, ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator

MIB = 1024 * 1024
BLOCK = 8 * MIB
# 251 is prime, so bytes shifted by any block show.
RAMP = (bytes(range(251)) * (40 * MIB // 251 + 1))[: 40 * MIB]
SIZES = {
    "empty": 0,
    "one": 1,
    "five": 5 * MIB,
    "block": BLOCK,
    "block-and-one": BLOCK + 1,
    "five-blocks": 5 * BLOCK,
}
NAME = "reads"

# Headers that each server sets for itself.
OWN_HEADERS = {"date", "server", "connection", "x-amz-request-id", "x-cache", "x-amz-id-2"}

Reply = tuple[int, dict[str, str], bytes]


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> str:
    bucket.make_bucket(NAME)
    client = bucket.client()
    for key, size in SIZES.items():
        client.put_object(
            Bucket=NAME, Key=key, Body=RAMP[:size], ContentType="application/x-tar", CacheControl="max-age=60",
            Metadata={"note": "kept", "made-by": "tests"}, ContentDisposition="attachment", ContentLanguage="de",
        )  # fmt: skip
    client.close()
    return NAME


@pytest.fixture
def direct(bucket: Bucket) -> Iterator[Any]:
    client = bucket.client()
    yield client
    client.close()


@pytest.fixture
def proxy(bucket: Bucket, simulator: Simulator) -> Iterator[Proxy]:
    with Proxy(bucket, simulator.endpoint, origin_patience_s="0.5") as running:
        simulator.reset()
        yield running


@pytest.fixture
def small_blocks(bucket: Bucket, simulator: Simulator) -> Iterator[Proxy]:
    with Proxy(bucket, simulator.endpoint, block_size="1MiB", origin_patience_s="0.5") as running:
        simulator.reset()
        yield running


def replied(ask_for: Callable[..., Any], **parameters: Any) -> Reply:
    """The result of a boto3 call, errors too, without the headers that each server sets for itself."""
    try:
        answer = ask_for(Bucket=NAME, **parameters)
    except ClientError as error:
        answer = error.response
    metadata = answer["ResponseMetadata"]
    headers = {name: value for name, value in metadata["HTTPHeaders"].items() if name not in OWN_HEADERS}
    body = answer["Body"].read() if "Body" in answer else answer.get("Error", {}).get("Code", "").encode()
    if metadata["HTTPStatusCode"] >= 400:
        headers = {}
    return metadata["HTTPStatusCode"], headers, body


def test_whole_reads_equal_the_buckets_cold_warm_and_after_each_kind_of_restart(proxy: Proxy, direct: Any) -> None:
    wanted = {key: replied(direct.get_object, Key=key) for key in SIZES}

    def read_all() -> list[str]:
        client = proxy.client()
        statuses = []
        for key, size in SIZES.items():
            answer = client.get_object(Bucket=NAME, Key=key)
            assert answer["Body"].read() == RAMP[:size], key
            assert replied(client.get_object, Key=key) == wanted[key]
            statuses.append(answer["ResponseMetadata"]["HTTPHeaders"]["x-cache"])
        proxy.settle()
        return statuses

    hits = ["HIT"] * len(SIZES)
    # An empty object has no block that could be missing.
    assert read_all() == ["HIT", *["MISS"] * (len(SIZES) - 1)]
    assert read_all() == hits
    proxy.restart()
    assert read_all() == hits
    proxy.restart(crashed=True)
    assert read_all() == hits


def test_heads_equal_the_buckets(proxy: Proxy, direct: Any) -> None:
    client = proxy.client()
    for key in SIZES:
        wanted = replied(direct.head_object, Key=key)
        assert replied(client.head_object, Key=key) == wanted
        assert replied(client.get_object, Key=key)[1] == replied(direct.get_object, Key=key)[1]
        assert replied(client.head_object, Key=key) == wanted, "after a GET"
    assert replied(client.head_object, Key="nothing") == replied(direct.head_object, Key="nothing")
    assert replied(client.get_object, Key="nothing") == replied(direct.get_object, Key="nothing")


def test_an_object_may_have_hundreds_of_metadata_headers(
    bucket: Bucket, direct: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http.client, "_MAXHEADERS", 500)  # the client's own limit
    metadata = [(f"x-amz-meta-{number:03}", "1") for number in range(300)]
    with Proxy(bucket) as proxy:
        headers = [*metadata, ("content-length", "1")]
        assert ask(proxy.address, "PUT", f"/{NAME}/many-headers", headers, b"x").status == 200
        for _ in ("cold", "warm"):
            for method in ("HEAD", "GET"):
                answer = ask(proxy.address, method, f"/{NAME}/many-headers")
                assert (answer.status, dict(metadata).items() <= answer.headers.items()) == (200, True)
    direct.delete_object(Bucket=NAME, Key="many-headers")


def test_a_checksum_of_the_whole_is_sent_with_whole_reads_and_only_on_request(proxy: Proxy) -> None:
    def checksums(method: str, *headers: tuple[str, str]) -> list[str]:
        answer = ask(proxy.address, method, f"/{NAME}/five", headers)
        return [name for name in answer.headers if name.startswith("x-amz-checksum-")]

    asked = ("x-amz-checksum-mode", "ENABLED")
    assert checksums("HEAD", asked) == checksums("GET", asked) == ["x-amz-checksum-crc32"]
    assert checksums("HEAD") == checksums("GET") == checksums("GET", asked, ("range", "bytes=0-9")) == []


RANGES = [
    "bytes=0-0",
    "bytes=0-",
    "bytes=1-1",
    f"bytes={MIB - 1}-{MIB}",
    f"bytes={MIB}-{2 * MIB - 1}",
    f"bytes={MIB - 1}-{3 * MIB}",
    f"bytes={BLOCK}-",
    f"bytes={BLOCK}-{BLOCK}",
    f"bytes={BLOCK - 5}-{BLOCK + 500}",
    "bytes=-1",
    f"bytes=-{MIB + 3}",
    f"bytes=-{BLOCK + 1}",
    f"bytes=-{99 * BLOCK}",
    f"bytes=3000000-{10**18}",
    f"bytes={BLOCK + 1}-",
    f"bytes={BLOCK + 1}-{BLOCK + 10}",
    "bytes=99999999999-",
    "bytes=-0",
    "bytes=5-2",
    "bytes=0-1,4-5",
    "bytes=a-b",
    "bytes=",
    "bytes=0x10-0x20",
    "items=0-5",
    "0-5",
    f"bytes=0-{10**30}",
]


def test_ranges_equal_the_buckets_cold_and_warm(bucket: Bucket, direct: Any) -> None:
    wanted = {asked: replied(direct.get_object, Key="block-and-one", Range=asked) for asked in RANGES}
    assert wanted["bytes=1-1"][::2] == (206, RAMP[1:2])
    # Twice in this order, then each on its own: the answer is the same whatever is cached already.
    with Proxy(bucket, block_size="1MiB") as proxy:
        for temperature in ("cold", "warm"):
            for asked in RANGES:
                got = replied(proxy.client().get_object, Key="block-and-one", Range=asked)
                assert got == wanted[asked], f"{asked} {temperature}"
    with Proxy(bucket, block_size="64KiB") as proxy:
        for asked in reversed(RANGES):
            assert replied(proxy.client().get_object, Key="block-and-one", Range=asked) == wanted[asked], asked


def test_ranges_of_an_empty_object_equal_the_buckets(proxy: Proxy, direct: Any) -> None:
    for asked in ("bytes=0-", "bytes=0-5", "bytes=5-", "bytes=-5"):
        ours = replied(proxy.client().get_object, Key="empty", Range=asked)
        # SeaweedFS answers some of these with 206 and no byte; S3 and we say 416.
        assert ours[0] in {416, replied(direct.get_object, Key="empty", Range=asked)[0]}
        assert ours[2] in {b"", b"InvalidRange"}


@pytest.mark.parametrize("key", SIZES)
def test_an_unknown_object_costs_one_get_per_block_and_no_head_that_a_reader_waits_for(
    proxy: Proxy, simulator: Simulator, key: str
) -> None:
    assert ask(proxy.address, "GET", f"/{NAME}/{key}").body == RAMP[: SIZES[key]]
    counts = simulator.counts()
    if SIZES[key]:
        assert counts.gets == -(-SIZES[key] // BLOCK)
        # In the background, a HEAD asks for the checksum of an object that is too large for an MD5.
        assert counts.heads <= 1
    else:
        assert counts.requests <= 2, "an empty range is a 416; only a HEAD has the other headers"
    assert counts.body_bytes - SIZES[key] < 1000, "no byte twice (only an error document may add some)"


def test_cached_objects_cost_the_bucket_nothing(proxy: Proxy, simulator: Simulator) -> None:
    ask(proxy.address, "GET", f"/{NAME}/five")
    proxy.settle()
    simulator.reset()
    assert ask(proxy.address, "GET", f"/{NAME}/five").headers["x-cache"] == "HIT"
    assert ask(proxy.address, "HEAD", f"/{NAME}/five").headers["x-cache"] == "HIT"
    assert ask(proxy.address, "GET", f"/{NAME}/five", [("range", "bytes=7-9")]).body == RAMP[7:10]
    # The checksum of the object may be asked for once.
    assert simulator.counts().gets == simulator.counts().body_bytes == 0


def test_a_head_before_the_get_is_one_head_more(proxy: Proxy, simulator: Simulator) -> None:
    assert ask(proxy.address, "HEAD", f"/{NAME}/five-blocks").headers["content-length"] == str(5 * BLOCK)
    assert ask(proxy.address, "GET", f"/{NAME}/five-blocks").body == RAMP
    assert (simulator.counts().gets, simulator.counts().heads) == (5, 1)


def test_a_read_that_finds_half_of_its_blocks_says_partial(proxy: Proxy) -> None:
    ask(proxy.address, "GET", f"/{NAME}/five-blocks", [("range", "bytes=0-9")])
    proxy.settle()
    answer = ask(proxy.address, "GET", f"/{NAME}/five-blocks", [("range", f"bytes=0-{2 * BLOCK}")])
    assert (answer.headers["x-cache"], answer.body) == ("PARTIAL", RAMP[: 2 * BLOCK + 1])
    assert ask(proxy.address, "GET", f"/{NAME}/five?tagging").headers["x-cache"] == "BYPASS"


def test_fifty_cold_readers_fetch_each_byte_once(small_blocks: Proxy, simulator: Simulator) -> None:
    simulator.conditions.ttfb_s = 0.05
    with ThreadPoolExecutor(50) as readers:
        target = f"/{NAME}/block-and-one"
        bodies = readers.map(lambda _: ask(small_blocks.address, "GET", target).body == RAMP[: BLOCK + 1], range(50))
        assert all(bodies)
    counts = simulator.counts()
    assert counts.body_bytes == BLOCK + 1
    assert counts.gets <= 9
    assert counts.heads <= 1, "for the checksum of the object"


def test_the_transfer_manager_reads_what_is_there(proxy: Proxy, simulator: Simulator) -> None:
    for _ in range(2):
        into = io.BytesIO()
        proxy.client().download_fileobj(NAME, "five-blocks", into, Config=TransferConfig(max_concurrency=10))
        assert into.getvalue() == RAMP
    assert simulator.counts().body_bytes == len(RAMP)


def test_conditions_are_evaluated_as_the_bucket_evaluates_them(proxy: Proxy, direct: Any) -> None:
    known = direct.head_object(Bucket=NAME, Key="five")
    etag, modified = known["ETag"], known["LastModified"]
    cases: list[dict[str, Any]] = [
        {"IfMatch": etag}, {"IfMatch": '"other"'}, {"IfNoneMatch": etag}, {"IfNoneMatch": '"other"'},
        {"IfModifiedSince": modified}, {"IfUnmodifiedSince": modified},
        {"IfModifiedSince": "Sat, 01 Jan 2000 00:00:00 GMT"}, {"IfUnmodifiedSince": "Sat, 01 Jan 2000 00:00:00 GMT"},
        {"IfMatch": etag, "Range": "bytes=5-9"}, {"IfNoneMatch": etag, "Range": "bytes=5-9"},
    ]  # fmt: skip
    for temperature in ("cold", "warm"):
        for case in cases:
            for call in ("get_object", "head_object"):
                if call == "head_object" and "Range" in case:
                    continue
                wanted = replied(getattr(direct, call), Key="five", **case)
                got = replied(getattr(proxy.client(), call), Key="five", **case)
                assert (got[0], got[2]) == (wanted[0], wanted[2]), (temperature, call, case)


def test_a_presigned_url_is_served_from_the_cache(proxy: Proxy) -> None:
    for version in ("s3v4", "s3"):
        client = proxy.client(signature_version=version)
        url = client.generate_presigned_url("get_object", Params={"Bucket": NAME, "Key": "five"})
        target = url.removeprefix(proxy.endpoint)
        assert ask(proxy.address, "GET", target).body == RAMP[: 5 * MIB]
        proxy.settle()
        assert ask(proxy.address, "GET", target, [("range", "bytes=3-5")]).headers["x-cache"] == "HIT"


def test_one_connection_carries_many_requests(proxy: Proxy) -> None:
    with RawConnection(proxy.address) as connection:
        for method, key, size in [("GET", "five", 5 * MIB), ("HEAD", "five", 0), ("GET", "one", 1), ("GET", "no", -1)]:
            answer = connection.ask(method, f"/{NAME}/{key}")
            assert len(answer.body) == size or answer.code == "NoSuchKey"
        assert connection.ask("GET", f"/{NAME}/five", [("connection", "close")]).headers["connection"] == "close"
        assert connection.is_closed_by_peer()


def test_pipelined_requests_are_answered_in_order(proxy: Proxy) -> None:
    with RawConnection(proxy.address) as connection:
        template = f"GET /{NAME}/five HTTP/1.1\r\nhost: x\r\nrange: bytes=%d-%d\r\n\r\n"
        connection.send("".join(template % (n, n + 9) for n in range(10)).encode())
        assert [connection.read_answer().body for _ in range(10)] == [RAMP[n : n + 10] for n in range(10)]


def test_http_1_0_gets_the_body_and_the_end_of_the_connection(proxy: Proxy) -> None:
    with RawConnection(proxy.address) as connection:
        assert connection.ask("GET", f"/{NAME}/one", version="HTTP/1.0").body == RAMP[:1]
        assert connection.is_closed_by_peer()
    with RawConnection(proxy.address) as connection:
        alive = [("connection", "keep-alive")]
        for _ in range(2):
            answer = connection.ask("GET", f"/{NAME}/one", alive, version="HTTP/1.0")
            assert (answer.body, answer.headers["connection"]) == (RAMP[:1], "keep-alive")
    with RawConnection(proxy.address) as connection:
        assert b"ListBucketResult" in connection.ask("GET", f"/{NAME}", alive, version="HTTP/1.0").body


def test_a_reader_that_hangs_up_stops_neither_the_fill_nor_the_others(proxy: Proxy, simulator: Simulator) -> None:
    simulator.conditions.faults = [Fault(FaultKind.STALL, after_bytes=MIB)]
    with RawConnection(proxy.address) as leader, RawConnection(proxy.address) as follower:
        for reader in (leader, follower):
            reader.send(f"GET /{NAME}/five HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert leader.read_head().read(MIB) == RAMP[:MIB]
        head = follower.read_head()
        leader.close()
        assert head.read(MIB) == RAMP[:MIB]
        simulator.release()
        assert head.read() == RAMP[MIB : 5 * MIB]
    assert simulator.counts().gets == 1


def test_a_fill_continues_to_disk_after_its_only_reader_left(proxy: Proxy, simulator: Simulator) -> None:
    simulator.conditions.faults = [Fault(FaultKind.STALL, after_bytes=MIB)]
    with RawConnection(proxy.address) as reader:
        reader.send(f"GET /{NAME}/five HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        reader.read_head().read(MIB)
    simulator.release()
    assert ask(proxy.address, "GET", f"/{NAME}/five").body == RAMP[: 5 * MIB]
    assert simulator.counts().body_bytes == 5 * MIB


BAD_CONDITIONS = {
    "resets in mid-body": Fault(FaultKind.RESET, times=None, probability=0.3, after_bytes=300_000),
    "bodies that end early": Fault(FaultKind.TRUNCATE, times=None, probability=0.3, after_bytes=500_000),
    "a storm of 503": Fault(FaultKind.STATUS, times=None, probability=0.3, status=503),
    "a storm of 500": Fault(FaultKind.STATUS, times=None, probability=0.3, status=500),
    "no answer at all": Fault(FaultKind.DROP, times=None, probability=0.3),
    "wrong Content-Range": Fault(FaultKind.WRONG_RANGE, times=None, probability=0.3),
}


@pytest.mark.parametrize("conditions", BAD_CONDITIONS)
def test_faults_of_the_origin_go_unnoticed(small_blocks: Proxy, simulator: Simulator, conditions: str) -> None:
    asked = Counter[str]()

    def may_strike(request: Request) -> bool:
        # Five failures in a row exhaust the proxy's retries, and chance would get there now and then.
        extent = request.headers.get("range", "")
        asked[extent] += 1
        return asked[extent] < 5

    simulator.conditions.faults = [replace(BAD_CONDITIONS[conditions], when=may_strike)]
    answer = ask(small_blocks.address, "GET", f"/{NAME}/five-blocks")
    assert answer.body == RAMP
    assert small_blocks.metric("outrider_origin_retries_total") > 0, "no fault struck"
    assert ask(small_blocks.address, "GET", f"/{NAME}/five-blocks").body == RAMP


def test_faults_without_end_become_the_origins_own_answer(small_blocks: Proxy, simulator: Simulator) -> None:
    simulator.conditions.faults = [Fault(FaultKind.STATUS, times=None, status=503)]
    answer = ask(small_blocks.address, "GET", f"/{NAME}/five")
    assert (answer.status, answer.code) == (503, "SlowDown")
    simulator.conditions.faults = []
    assert ask(small_blocks.address, "GET", f"/{NAME}/five").body == RAMP[: 5 * MIB]


def test_an_origin_that_fails_for_good_in_mid_body_cuts_the_reader(small_blocks: Proxy, simulator: Simulator) -> None:
    fifth = f"bytes={4 * MIB}-"
    simulator.conditions.faults = [
        Fault(FaultKind.DROP, times=None, when=lambda request: fifth in request.headers["range"])
    ]
    with RawConnection(small_blocks.address) as connection:
        connection.send(f"GET /{NAME}/five-blocks HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        head = connection.read_head()
        assert head.status == 200
        with pytest.raises((http.client.IncompleteRead, ConnectionError)) as cut:
            head.read()
        if isinstance(cut.value, http.client.IncompleteRead):
            assert cut.value.partial == RAMP[: len(cut.value.partial)]


def test_warm_objects_outlive_an_outage_and_cold_ones_are_503(proxy: Proxy, simulator: Simulator) -> None:
    ask(proxy.address, "GET", f"/{NAME}/five")
    with simulator.outage():
        assert ask(proxy.address, "GET", f"/{NAME}/five").body == RAMP[: 5 * MIB]
        for method in ("GET", "HEAD"):
            answer = ask(proxy.address, method, f"/{NAME}/block")
            assert answer.status == 503
        cold = ask(proxy.address, "GET", f"/{NAME}/block")
        assert cold.code == "ServiceUnavailable"
        assert cold.error["RequestId"] == cold.headers["x-amz-request-id"]
        assert ask(proxy.address, "GET", f"/{NAME}?list-type=2").code == "ServiceUnavailable"
    assert ask(proxy.address, "GET", f"/{NAME}/block").body == RAMP[:BLOCK]


def test_stale_objects_outlive_an_outage_only_where_that_was_chosen(bucket: Bucket, simulator: Simulator) -> None:
    for chosen, status in ((True, 200), (False, 503)):
        with Proxy(
            bucket, simulator.endpoint, freshness="always", stale_if_error=chosen,
            origin_patience_s="60" if chosen else "0.5",
        ) as proxy:  # fmt: skip
            assert ask(proxy.address, "GET", f"/{NAME}/five").status == 200
            with simulator.outage():
                assert ask(proxy.address, "GET", f"/{NAME}/five").status == status


def test_an_overwrite_past_the_proxy_is_seen_whole_or_not_at_all(
    bucket: Bucket, simulator: Simulator, direct: Any
) -> None:
    first, second = RAMP, bytes(255 - byte for byte in RAMP[:MIB]) * 40
    direct.put_object(Bucket=NAME, Key="moving", Body=first)
    with Proxy(bucket, simulator.endpoint, block_size="1MiB", freshness="immutable") as proxy:
        with RawConnection(proxy.address) as connection:
            connection.send(f"GET /{NAME}/moving HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            head = connection.read_head()
            # The reader takes a byte and pauses: back-pressure keeps the rest at the bucket.
            begun = head.read(1)
            direct.put_object(Bucket=NAME, Key="moving", Body=second)
            with pytest.raises((http.client.IncompleteRead, ConnectionError)) as cut:
                head.read()
        if isinstance(cut.value, http.client.IncompleteRead):
            assert begun + cut.value.partial == first[: 1 + len(cut.value.partial)]
        # The cached version is doubtful now, even with `immutable`: its remaining blocks are not served.
        assert ask(proxy.address, "GET", f"/{NAME}/moving").body == second


def test_an_overwrite_before_the_first_byte_restarts_the_read(
    bucket: Bucket, simulator: Simulator, direct: Any
) -> None:
    direct.put_object(Bucket=NAME, Key="moved", Body=b"first" * 1000)
    with Proxy(bucket, simulator.endpoint, freshness="immutable") as proxy:
        assert ask(proxy.address, "HEAD", f"/{NAME}/moved").headers["content-length"] == "5000"
        direct.put_object(Bucket=NAME, Key="moved", Body=b"second" * 1000)
        answer = ask(proxy.address, "GET", f"/{NAME}/moved")
        assert (answer.status, answer.body) == (200, b"second" * 1000)


def test_ttl_and_always_revalidate_when_they_promise(bucket: Bucket, simulator: Simulator, direct: Any) -> None:
    direct.put_object(Bucket=NAME, Key="asked", Body=b"first")
    with Proxy(bucket, simulator.endpoint, freshness="always") as proxy:
        ask(proxy.address, "GET", f"/{NAME}/asked")
        simulator.reset()
        assert ask(proxy.address, "GET", f"/{NAME}/asked").body == b"first"
        assert (simulator.counts().requests, simulator.counts().body_bytes) == (1, 0), "one 304"
        direct.put_object(Bucket=NAME, Key="asked", Body=b"second")
        assert ask(proxy.address, "GET", f"/{NAME}/asked").body == b"second"


def test_each_byte_sent_is_counted_once_with_its_source(small_blocks: Proxy, simulator: Simulator) -> None:
    sent = 0
    for asked in ("bytes=0-99", "bytes=0-3000000", "bytes=500000-8000000", "bytes=-5"):
        sent += len(ask(small_blocks.address, "GET", f"/{NAME}/block-and-one", [("range", asked)]).body)
    sent += len(ask(small_blocks.address, "GET", f"/{NAME}/block-and-one").body)
    sent += len(ask(small_blocks.address, "GET", f"/{NAME}?list-type=2").body)
    small_blocks.settle()
    by_source = {
        source: small_blocks.metric("outrider_served_bytes_total", source=source)
        for source in ("disk", "flight", "origin")
    }
    assert sum(by_source.values()) == sent
    assert by_source["disk"] >= BLOCK + 1
    assert by_source["flight"] > 0
    assert small_blocks.metric("outrider_origin_bytes_total") == simulator.counts().body_bytes


def test_an_error_of_the_origin_is_not_cached(proxy: Proxy, direct: Any) -> None:
    direct.delete_object(Bucket=NAME, Key="late")
    assert ask(proxy.address, "GET", f"/{NAME}/late").code == "NoSuchKey"
    direct.put_object(Bucket=NAME, Key="late", Body=b"here")
    assert ask(proxy.address, "GET", f"/{NAME}/late").body == b"here"
    direct.delete_object(Bucket=NAME, Key="late")


@pytest.mark.parametrize(("near_s", "bounded"), [(60.0, True), (0.0, False)])
def test_the_send_buffer_of_a_nearby_client_is_bounded(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, near_s: float, bounded: bool
) -> None:
    monkeypatch.setattr(sender, "_NEAR_S", near_s)
    held: list[int] = []
    lost = SocketSender.lost

    def noted(self: SocketSender) -> None:
        if self._socket is not None:
            held.append(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
        lost(self)

    monkeypatch.setattr(SocketSender, "lost", noted)
    for _ in range(2):
        assert ask(proxy.address, "GET", f"/{NAME}/five-blocks").body == RAMP
        proxy.settle()
    assert held
    assert all((size <= 2 * sender._NEAR_BUFFER_BYTES) == bounded for size in held), held


def test_a_hit_goes_from_the_block_file_to_the_socket_by_the_kernel(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = proxy.client()
    assert client.get_object(Bucket=NAME, Key="five-blocks")["Body"].read() == RAMP
    by_kernel: list[int] = []
    by_python: list[int] = []
    sendfile, send = os.sendfile, SocketSender.send

    def counted_sendfile(*args: Any) -> int:
        by_kernel.append(sendfile(*args))
        return by_kernel[-1]

    async def counted_send(self: SocketSender, data: Any, *, more: bool = False) -> None:
        by_python.append(len(data))
        await send(self, data, more=more)

    monkeypatch.setattr(os, "sendfile", counted_sendfile)
    monkeypatch.setattr(SocketSender, "send", counted_send)
    assert client.get_object(Bucket=NAME, Key="five-blocks")["Body"].read() == RAMP
    client.close()
    assert sum(by_kernel) == len(RAMP)
    assert sum(by_python) < 4096, "Python sends only the head"


@pytest.mark.parametrize("taken", [0, 10, 5000, 10**6])
def test_a_small_miss_arrives_whole_however_little_the_socket_takes_at_once(
    bucket: Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    client = bucket.client()
    client.put_object(Bucket=NAME, Key=f"small-{taken}", Body=RAMP[:50_000])
    client.close()
    together: list[int] = []

    def little(self: SocketSender, head: bytes, body: bytes) -> int:
        together.append(len(head) + len(body))
        return self.send_now((bytes(head) + bytes(body))[:taken])

    monkeypatch.setattr(SocketSender, "send_parts_now", little)
    answer = ask(proxy.address, "GET", f"/{NAME}/small-{taken}")
    assert (answer.status, answer.body) == (200, RAMP[:50_000])
    assert together, "head and body were not sent together"
