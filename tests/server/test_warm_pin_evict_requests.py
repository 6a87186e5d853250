"""Maintenance commands (warm, pin, evict, verify) by plain S3 calls to the control bucket, before a real bucket."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from tests.support.control_bucket import put, read_json, wait_for_end, wait_until
from tests.support.fakes import ramp
from tests.support.proxy import Proxy
from tests.support.rawhttp import ask
from tests.support.tenants import CLIENTS, NAME, OTHER, TEAM

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket

BLOCK = 64 * 1024
SIZES = [3 * BLOCK + 7, 1, BLOCK, 2 * BLOCK]
KEYS = [f"set/shard-{number:03}.tar" for number in range(len(SIZES))]
BUCKET = "maintenance"
ALL = f"s3://{BUCKET}/set/"
TEMPLATE = f"s3://{BUCKET}/set/shard-{{000..003}}.tar"


@pytest.fixture(scope="module")
def shards(bucket: Bucket) -> None:
    shards = {key: ramp(size, number) for number, (key, size) in enumerate(zip(KEYS, SIZES, strict=True))}
    bucket.store(BUCKET, shards | {"big/one": ramp(20 * BLOCK), "big/two": ramp(20 * BLOCK, 9), "empty": b""})


@pytest.fixture
def proxy(bucket: Bucket, shards: None) -> Iterator[Proxy]:
    # A block that the scrubber or the comparison with the bucket reads in that moment is evicted a little later.
    with Proxy(bucket, block_size=str(BLOCK), scrub_bandwidth="0", verify_origin="off") as running:
        yield running


def small(bucket: Bucket, blocks: int, **settings: Any) -> Proxy:
    """A proxy with room for this many blocks."""
    chosen = {"verify_origin": "off", **settings}
    return Proxy(bucket, block_size=str(BLOCK), cache_size=str(blocks * (BLOCK + 4096)), **chosen)


def code_of(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


def cache_of(s3: Any, key: str) -> str:
    reply = s3.get_object(Bucket=BUCKET, Key=key)
    reply["Body"].read()
    return str(reply["ResponseMetadata"]["HTTPHeaders"]["x-cache"])


def test_warmed_objects_are_on_disk_and_counted_however_they_are_named(proxy: Proxy) -> None:
    s3 = proxy.client()
    for number, lines in enumerate(([ALL], [TEMPLATE], ["# all", "", *(f"s3://{BUCKET}/{key}" for key in KEYS)])):
        put(s3, "evict/all", ALL)
        put(s3, f"warm/{number}", *lines)
        state = wait_for_end(s3, f"warm/{number}")
        assert state["state"] == "done"
        assert state["objects"] == {"wanted": 4, "on_disk": 4, "failed": 0, "unsized": 0}
        assert state["bytes"] == {"wanted": sum(SIZES), "on_disk": sum(SIZES), "fetched": sum(SIZES)}
        before = proxy.metric("outrider_origin_bytes_total")
        assert [cache_of(s3, key) for key in KEYS] == ["HIT"] * 4
        assert proxy.metric("outrider_origin_bytes_total") == before
    put(s3, "evict/first", f"s3://{BUCKET}/{KEYS[0]}")
    state = read_json(s3, "warm/2")
    assert (state["objects"]["on_disk"], state["bytes"]["on_disk"]) == (3, sum(SIZES[1:])), "as it is now"


def test_blocks_on_disk_are_not_filled_again(proxy: Proxy) -> None:
    s3 = proxy.client()
    cache_of(s3, KEYS[0])
    proxy.settle()
    put(s3, "warm/set", ALL)
    assert wait_for_end(s3, "warm/set")["bytes"] == {
        "wanted": sum(SIZES), "on_disk": sum(SIZES), "fetched": sum(SIZES) - SIZES[0],
    }  # fmt: skip
    proxy.restart()
    s3 = proxy.client()
    put(s3, "warm/set", ALL)
    state = wait_for_end(s3, "warm/set")
    assert (state["state"], state["bytes"]["on_disk"], state["bytes"]["fetched"]) == ("done", sum(SIZES), 0)
    assert list(proxy.outrider.store.each(unverified=True)) == [], (
        "blocks found at the start are verified before they count"
    )


def test_objects_that_cannot_be_warmed_are_reported_by_name(proxy: Proxy) -> None:
    s3 = proxy.client()
    put(s3, "warm/x", f"s3://{BUCKET}/none", TEMPLATE, f"s3://{BUCKET}/nothing/", "s3://no-such-bucket/a/",
        f"s3://{BUCKET}/empty")  # fmt: skip
    state = wait_for_end(s3, "warm/x")
    assert state["state"] == "failed"
    assert (state["objects"]["on_disk"], state["objects"]["failed"]) == (5, 3)
    failures = {failure["object"]: failure["error"] for failure in state["failures"]}
    assert failures[f"s3://{BUCKET}/none"] == "404 NoSuchKey"
    assert failures[f"s3://{BUCKET}/nothing/"] == "there is no object whose key begins so"
    assert "404" in failures["s3://no-such-bucket/a/"]


def test_commands_are_listed_and_shown_in_the_status(proxy: Proxy) -> None:
    s3 = proxy.client()
    for folder in ("warm", "pin", "evict", "verify"):
        put(s3, f"{folder}/of mine", f"s3://{BUCKET}/{KEYS[1]}")
    keys = [entry["Key"] for entry in s3.list_objects_v2(Bucket="_outrider")["Contents"]]
    assert keys == ["evict/of mine", "pin/of mine", "status.json", "verify/of mine", "warm/of mine"]
    wait_for_end(s3, "warm/of mine")
    wait_for_end(s3, "pin/of mine")
    status = read_json(s3, "status.json")
    assert [command["name"] for command in status["warmups"]] == ["of mine"]
    assert [(command["reserved_bytes"], command["bytes"]["on_disk"]) for command in status["pins"]] == [(4096, 1)]
    by_age = {"ended_s": None}
    assert [warmup | by_age for warmup in proxy.status()["warmups"]] == [
        warmup | by_age for warmup in status["warmups"]
    ]


def test_a_warm_up_is_joined_by_its_own_list_replaced_by_another_cancelled_and_forgotten(proxy: Proxy) -> None:
    s3, big = proxy.client(), f"s3://{BUCKET}/big/"
    put(s3, "warm/slow", big, rate="100kB")
    wait_until(lambda: read_json(s3, "warm/slow")["bytes"]["fetched"] > 0)
    put(s3, "warm/slow", big, rate="100kB")
    assert read_json(s3, "warm/slow")["bytes"]["fetched"] > 0, "the warm-up goes on"
    s3.delete_object(Bucket="_outrider", Key="warm/slow")
    state = read_json(s3, "warm/slow")
    assert state["state"] == "cancelled"
    assert state["bytes"]["on_disk"] < 40 * BLOCK
    s3.delete_object(Bucket="_outrider", Key="warm/slow")
    assert ask(proxy.address, "GET", "/_outrider/warm/slow").status == 404
    put(s3, "warm/slow", big, rate="100kB")
    put(s3, "warm/slow", ALL)
    assert wait_for_end(s3, "warm/slow")["objects"]["wanted"] == 4


def test_a_head_of_the_first_byte_warms(proxy: Proxy) -> None:
    s3 = proxy.client()
    s3.head_object(Bucket=BUCKET, Key=KEYS[0], Range="bytes=0-0")
    wait_until(lambda: proxy.status()["blocks"] == 4)
    proxy.settle()
    assert cache_of(s3, KEYS[0]) == "HIT"
    s3.head_object(Bucket=BUCKET, Key=KEYS[3])
    s3.head_object(Bucket=BUCKET, Key=KEYS[3], Range="bytes=0-1")
    proxy.settle()
    assert proxy.status()["blocks"] == 4


def test_a_malformed_list_is_refused_with_the_reason(proxy: Proxy) -> None:
    """`tests/unit/maintenance/test_object_list.py` has what is malformed."""
    bad = {b"": "names nothing", b"s3://b-1/k\n/b/k": "Line 2 is not", b"s3://bkt/\xff": "not UTF-8"}
    for folder in ("warm", "pin", "evict"):
        for body, why in bad.items():
            head = [("content-length", str(len(body)))]
            answer = ask(proxy.address, "PUT", f"/_outrider/{folder}/bad", head, body)
            assert (answer.status, answer.code) == (400, "InvalidArgument")
            assert why in answer.error["Message"]
    with pytest.raises(ClientError) as error:
        put(proxy.client(), "warm/x", ALL, rate="fast")
    assert code_of(error) == "InvalidArgument"
    assert proxy.metric("outrider_origin_requests_total") == 0


# -- pins ---------------------------------------------------------------------------------------------------------


def test_a_pin_makes_room_for_itself_and_holds_it_under_pressure_and_over_a_crash(bucket: Bucket, shards: None) -> None:
    with small(bucket, 26, policy="lru") as proxy:
        s3 = proxy.client()
        put(s3, "warm/other", f"s3://{BUCKET}/big/two")
        wait_for_end(s3, "warm/other")
        put(s3, "pin/one", f"s3://{BUCKET}/big/one", rate="1GB")
        assert wait_for_end(s3, "pin/one")["state"] == "done"
        assert (proxy.cache_dir / "pins").stat().st_mode & 0o777 == 0o600
        with pytest.raises(ClientError) as error:
            put(s3, "pin/two", f"s3://{BUCKET}/big/two")
        assert code_of(error) == "InsufficientStorage"
        for crashed in (False, True):
            for key in ["big/two", *KEYS, "big/two", *KEYS]:
                cache_of(s3, key)
            proxy.settle()
            state = wait_for_end(s3, "pin/one")
            assert (state["state"], state["bytes"]["on_disk"]) == ("done", 20 * BLOCK)
            assert cache_of(s3, "big/one") == "HIT"
            assert proxy.outrider.store.used_bytes <= 26 * (BLOCK + 4096)
            if not crashed:
                proxy.restart(crashed=True)
                s3 = proxy.client()
        s3.delete_object(Bucket="_outrider", Key="pin/one")
        cache_of(s3, "big/two")
        proxy.settle()
        assert cache_of(s3, "big/one") != "HIT", "once unpinned, it may be evicted"
        proxy.restart()
        assert ask(proxy.address, "GET", "/_outrider/pin/one").status == 404


def test_a_pin_that_no_longer_fits_is_reported_and_the_budget_holds(bucket: Bucket, shards: None) -> None:
    with small(bucket, 26) as proxy:
        s3 = proxy.client()
        put(s3, "pin/one", f"s3://{BUCKET}/big/one")
        wait_for_end(s3, "pin/one")
        proxy.stop()
        proxy.settings["cache_size"] = str(10 * (BLOCK + 4096))
        proxy.start()
        s3 = proxy.client()
        state = read_json(s3, "pin/one")
        assert state["state"] == "failed"
        assert "are missing" in state["failures"][0]["error"]
        assert proxy.outrider.store.used_bytes <= 10 * (BLOCK + 4096)


# -- evict, verify ------------------------------------------------------------------------------------------------


def test_blocks_that_are_being_read_are_evicted_when_released(proxy: Proxy) -> None:
    s3 = proxy.client()
    put(s3, "warm/set", ALL)
    wait_for_end(s3, "warm/set")
    store = proxy.outrider.store

    async def taken() -> Any:
        return [await store.lease(block) for block in store.blocks_of(lambda ref: ref.key == KEYS[0])]

    leases = proxy.on_loop(taken)
    put(s3, "evict/e", ALL)
    gone = read_json(s3, "evict/e")
    assert (gone["blocks"], gone["in_use_blocks"]) == (4, 4)
    assert len(store) == 4
    for lease in leases:
        lease.release()
    wait_until(lambda: len(store) == 0)


# -- tenants ------------------------------------------------------------------------------------------------------


def test_clients_command_what_they_may_read_and_see_their_own_commands_alone(bucket: Bucket, tmp_path: Path) -> None:
    bucket.store(NAME, {f"{tenant}/secret-name": b"x" * 100 for tenant in ("team", "other")})
    (tmp_path / "clients.toml").write_text(CLIENTS)
    with Proxy(bucket, auth="sigv4", clients=tmp_path / "clients.toml") as guarded:
        team, other = guarded.client(TEAM), guarded.client(OTHER)
        for folder in ("warm", "pin", "evict", "verify"):
            for name in ("other/secret-name", "other/", "", "team/../other/", "tea{m,}/secret-name"):
                url = f"s3://{NAME}/{name}"
                with pytest.raises(ClientError) as error:
                    put(team, f"{folder}/x", f"s3://{NAME}/team/secret-name", url)
                assert code_of(error) == "AccessDenied", url
            unsigned = ask(guarded.address, "PUT", f"/_outrider/{folder}/y", (("content-length", "0"),))
            assert unsigned.code == "AccessDenied"
            put(team, f"{folder}/mine", f"s3://{NAME}/team/")
            with pytest.raises(ClientError) as error:
                read_json(other, f"{folder}/mine")
            assert code_of(error) == "NoSuchKey"
            other.delete_object(Bucket="_outrider", Key=f"{folder}/mine")
            read_json(team, f"{folder}/mine")
        wait_for_end(team, "pin/mine")
        assert [entry["Key"] for entry in other.list_objects_v2(Bucket="_outrider")["Contents"]] == ["status.json"]
        status = read_json(other, "status.json")
        assert (status["warmups"], status["pins"]) == ([], [])
        assert "secret-name" not in json.dumps(status)
        assert {pin["client"] for pin in read_json(team, "status.json")["pins"]} == {"team"}
        # A verify of all covers only objects that the client may read.
        put(other, "verify/all", "")
        assert wait_for_end(other, "verify/all")["blocks"]["wanted"] == 0
