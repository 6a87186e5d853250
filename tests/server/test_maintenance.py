"""Maintenance commands (warm, pin, evict, verify) by plain S3 calls to the control bucket, before a real bucket."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from tests.support.child import program
from tests.support.client_access import Access, run
from tests.support.control_bucket import put, read_json, wait_for_end, wait_until
from tests.support.fakes import ramp
from tests.support.proxy import ANY_KEYS, Proxy
from tests.support.rawhttp import ask
from tests.support.s3_clients import aws
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
    s3 = bucket.client()
    bucket.make_bucket(BUCKET)
    for number, (key, size) in enumerate(zip(KEYS, SIZES, strict=True)):
        s3.put_object(Bucket=BUCKET, Key=key, Body=ramp(size, number))
    s3.put_object(Bucket=BUCKET, Key="big/one", Body=ramp(20 * BLOCK))
    s3.put_object(Bucket=BUCKET, Key="big/two", Body=ramp(20 * BLOCK, 9))
    s3.put_object(Bucket=BUCKET, Key="empty", Body=b"")
    s3.close()


@pytest.fixture
def proxy(bucket: Bucket, shards: None) -> Iterator[Proxy]:
    # A block that the scrubber or the comparison with the bucket reads in that moment is evicted a little later.
    with Proxy(bucket, block_size=str(BLOCK), scrub_bandwidth="0", verify_origin="off") as running:
        yield running


def small(bucket: Bucket, blocks: int, **settings: Any) -> Proxy:
    """A proxy with room for this many blocks."""
    chosen = {"verify_origin": "off", **settings}
    return Proxy(bucket, block_size=str(BLOCK), cache_size=str(blocks * (BLOCK + 4096)), **chosen)


def code_of(error: pytest.ExceptionInfo[ClientError]) -> tuple[int, str, str]:
    answer = error.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"], answer["Error"].get("Message", "")


def cache_of(s3: Any, key: str) -> str:
    reply = s3.get_object(Bucket=BUCKET, Key=key)
    reply["Body"].read()
    return str(reply["ResponseMetadata"]["HTTPHeaders"]["x-cache"])


@pytest.mark.parametrize("lines", [[ALL], [TEMPLATE], ["# all", "", *(f"s3://{BUCKET}/{key}" for key in KEYS)]])
def test_warmed_objects_are_on_disk_and_counted(proxy: Proxy, lines: list[str]) -> None:
    s3 = proxy.client()
    put(s3, "warm/set", *lines)
    state = wait_for_end(s3, "warm/set")
    assert state["state"] == "done"
    assert state["objects"] == {"wanted": 4, "on_disk": 4, "failed": 0, "unsized": 0}
    assert state["bytes"] == {"wanted": sum(SIZES), "on_disk": sum(SIZES), "fetched": sum(SIZES)}
    before = proxy.metric("outrider_origin_bytes_total")
    assert [cache_of(s3, key) for key in KEYS] == ["HIT"] * 4
    assert proxy.metric("outrider_origin_bytes_total") == before


@pytest.fixture
def unscrubbed(bucket: Bucket, shards: None) -> Iterator[Proxy]:
    with Proxy(bucket, block_size=str(BLOCK), scrub_bandwidth="0") as running:
        yield running


def test_blocks_on_disk_are_not_filled_again(unscrubbed: Proxy) -> None:
    proxy = unscrubbed
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


def test_a_warm_up_that_does_not_fit_says_so_and_evicts_nothing_of_its_own(bucket: Bucket, shards: None) -> None:
    with small(bucket, 25) as proxy:
        s3 = proxy.client()
        put(s3, "warm/big", f"s3://{BUCKET}/big/")
        state = wait_for_end(s3, "warm/big")
        assert state["state"] == "failed"
        assert state["objects"] == {"wanted": 2, "on_disk": 1, "failed": 1, "unsized": 0}
        assert "bytes are missing in the cache" in state["failures"][0]["error"]
        assert proxy.metric("outrider_evicted_blocks_total") == 0


def test_a_warm_up_whose_blocks_were_evicted_does_not_report_them_on_disk(proxy: Proxy) -> None:
    s3 = proxy.client()
    put(s3, "warm/set", ALL)
    wait_for_end(s3, "warm/set")
    put(s3, "evict/first", f"s3://{BUCKET}/{KEYS[0]}")
    assert read_json(s3, "evict/first")["blocks"] == 4
    state = read_json(s3, "warm/set")
    assert (state["objects"]["on_disk"], state["bytes"]["on_disk"]) == (3, sum(SIZES[1:]))
    assert cache_of(s3, KEYS[0]) == "MISS"


def test_the_aws_command_alone_can_warm(proxy: Proxy, tmp_path: Path) -> None:
    access = Access(proxy.endpoint, ANY_KEYS, tmp_path)
    run(access, "sh", "-c", f"echo {ALL} | {program('aws')} s3 cp - s3://_outrider/warm/x")
    s3 = proxy.client()
    assert wait_for_end(s3, "warm/x")["state"] == "done"
    assert json.loads(aws(access, "s3", "cp", "s3://_outrider/warm/x", "-"))["objects"]["on_disk"] == 4
    assert aws(access, "s3", "ls", "s3://_outrider/warm/").decode().split()[-1] == "x"
    (tmp_path / "list").write_text(ALL)
    aws(access, "s3api", "put-object", "--bucket", "_outrider", "--key", "pin/x", "--body", str(tmp_path / "list"))
    assert wait_for_end(s3, "pin/x")["reserved_bytes"] > sum(SIZES)
    aws(access, "s3", "rm", "s3://_outrider/pin/x")
    assert ask(proxy.address, "GET", "/_outrider/pin/x").status == 404


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
    assert [told | by_age for told in proxy.status()["warmups"]] == [told | by_age for told in status["warmups"]]


def test_a_warm_up_can_be_cancelled_and_then_forgotten(proxy: Proxy) -> None:
    s3 = proxy.client()
    put(s3, "warm/slow", f"s3://{BUCKET}/big/", rate="100kB")
    wait_until(lambda: read_json(s3, "warm/slow")["bytes"]["on_disk"] > 0)
    s3.delete_object(Bucket="_outrider", Key="warm/slow")
    state = read_json(s3, "warm/slow")
    assert state["state"] == "cancelled"
    assert state["bytes"]["on_disk"] < 40 * BLOCK
    s3.delete_object(Bucket="_outrider", Key="warm/slow")
    assert ask(proxy.address, "GET", "/_outrider/warm/slow").status == 404


def test_a_repeated_list_joins_the_warm_up_that_runs(proxy: Proxy) -> None:
    s3 = proxy.client()
    put(s3, "warm/slow", f"s3://{BUCKET}/big/", rate="100kB")
    wait_until(lambda: read_json(s3, "warm/slow")["bytes"]["fetched"] > 0)
    put(s3, "warm/slow", f"s3://{BUCKET}/big/", rate="100kB")
    assert read_json(s3, "warm/slow")["bytes"]["fetched"] > 0, "the warm-up goes on"
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


BAD_LISTS = {
    b"": "names nothing",
    b"# no more": "names nothing",
    b"s3://b-1/k\n/b/k": "Line 2 is not",
    b"http://169.254.169.254/latest/": "Line 1 is not",
    b"s3://127.0.0.1:80/k": "Line 1 is not",
    b"s3://_outrider/status.json": "Line 1 is not",
    b"s3://../k": "Line 1 is not",
    b"s3://bkt/{1..2": "a brace without its other",
    b"s3://bkt/{x}": "neither a range",
    b"s3://bkt/{0..99999999999999999}": "more than",
    b"s3://bkt/{0..9999}{0..9999}": "more than",
    b"s3://bkt/\xff": "not UTF-8",
    b"s3://bkt/" + b"k" * 1025: "Line 1 is not",
}


@pytest.mark.parametrize("body", BAD_LISTS, ids=lambda body: body[:30].decode("latin-1"))
@pytest.mark.parametrize("folder", ["warm", "pin", "evict"])
def test_a_malformed_list_is_refused_with_the_reason(proxy: Proxy, folder: str, body: bytes) -> None:
    answer = ask(proxy.address, "PUT", f"/_outrider/{folder}/bad", (("content-length", str(len(body))),), body)
    assert (answer.status, answer.code) == (400, "InvalidArgument")
    assert BAD_LISTS[body] in answer.error["Message"]
    assert proxy.metric("outrider_origin_requests_total") == 0


def test_an_invalid_rate_is_refused(proxy: Proxy) -> None:
    with pytest.raises(ClientError) as error:
        put(proxy.client(), "warm/x", ALL, rate="fast")
    assert code_of(error)[1] == "InvalidArgument"


# -- pins ---------------------------------------------------------------------------------------------------------


def test_a_pin_that_does_not_fit_is_refused_with_the_numbers(bucket: Bucket, shards: None) -> None:
    with small(bucket, 30) as proxy:
        s3 = proxy.client()
        put(s3, "pin/one", f"s3://{BUCKET}/big/one")
        assert wait_for_end(s3, "pin/one")["state"] == "done"
        with pytest.raises(ClientError) as error:
            put(s3, "pin/two", f"s3://{BUCKET}/big/two")
        size = 20 * (BLOCK + 4096)
        status, code, message = code_of(error)
        assert (status, code) == (507, "InsufficientStorage")
        assert f"{10 * (BLOCK + 4096)} bytes are missing" in message
        assert f"1 object would take {size} bytes" in message
        assert f"other pins hold {size}" in message
        assert ask(proxy.address, "GET", "/_outrider/pin/two").status == 404
        assert read_json(s3, "pin/one")["bytes"]["on_disk"] == 20 * BLOCK
        # It fits once it replaces the other.
        put(s3, "pin/one", f"s3://{BUCKET}/big/two")
        assert wait_for_end(s3, "pin/one")["state"] == "done"


@pytest.mark.parametrize("policy", ["epoch", "lru", "fifo", "none"])
def test_under_pressure_no_pinned_block_is_evicted(bucket: Bucket, shards: None, policy: str) -> None:
    with small(bucket, 26, policy=policy) as proxy:
        s3 = proxy.client()
        put(s3, "warm/other", f"s3://{BUCKET}/big/two")
        wait_for_end(s3, "warm/other")
        put(s3, "pin/one", f"s3://{BUCKET}/big/one")
        assert wait_for_end(s3, "pin/one")["state"] == "done", (
            "objects that the policy would keep make room for the pin"
        )
        for key in ["big/two", *KEYS, "big/two", *KEYS]:
            cache_of(s3, key)
        proxy.settle()
        assert read_json(s3, "pin/one")["bytes"]["on_disk"] == 20 * BLOCK
        assert cache_of(s3, "big/one") == "HIT"
        assert proxy.outrider.store.used_bytes <= 26 * (BLOCK + 4096)
        s3.delete_object(Bucket="_outrider", Key="pin/one")
        if policy == "lru":
            cache_of(s3, "big/two")
            proxy.settle()
            assert cache_of(s3, "big/one") != "HIT", "once unpinned, it may be evicted"


@pytest.mark.parametrize("crashed", [False, True], ids=["stopped", "crashed"])
def test_pins_outlive_a_restart(bucket: Bucket, shards: None, crashed: bool) -> None:
    with small(bucket, 26, policy="lru") as proxy:
        s3 = proxy.client()
        put(s3, "pin/one", f"s3://{BUCKET}/big/one", rate="1GB")
        wait_for_end(s3, "pin/one")
        pins = proxy.cache_dir / "pins"
        assert pins.stat().st_mode & 0o777 == 0o600
        proxy.restart(crashed=crashed)
        s3 = proxy.client()
        for key in ["big/two", *KEYS, "big/two", *KEYS]:
            cache_of(s3, key)
        proxy.settle()
        state = wait_for_end(s3, "pin/one")
        assert (state["state"], state["bytes"]["on_disk"], state["bytes"]["fetched"]) == ("done", 20 * BLOCK, 0)
        s3.delete_object(Bucket="_outrider", Key="pin/one")
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


def test_a_pin_holds_names_and_follows_overwrites(bucket: Bucket, shards: None) -> None:
    origin = bucket.client()
    origin.put_object(Bucket=BUCKET, Key="moving", Body=ramp(4 * BLOCK))
    with small(bucket, 12, policy="lru", freshness="always") as proxy:
        s3 = proxy.client()
        put(s3, "pin/m", f"s3://{BUCKET}/moving")
        wait_for_end(s3, "pin/m")
        origin.put_object(Bucket=BUCKET, Key="moving", Body=ramp(4 * BLOCK, 77))
        cache_of(s3, "moving")
        proxy.settle()
        for key in [KEYS[0], "big/one", KEYS[3]]:
            cache_of(s3, key)
        proxy.settle()
        assert cache_of(s3, "moving") == "HIT"
    origin.close()


@pytest.mark.parametrize(("count", "heads"), [(40, 0), (19, 19)])
def test_a_pin_of_many_names_costs_one_get_for_each(bucket: Bucket, shards: None, count: int, heads: int) -> None:
    """One LIST gives their sizes, in place of a HEAD for each; for a few objects it would cost more."""
    origin = bucket.client()
    for number in range(count):
        origin.put_object(Bucket=BUCKET, Key=f"many/{number:03}", Body=ramp(100 + number))
    with Proxy(bucket, block_size=str(BLOCK)) as proxy:
        s3 = proxy.client()
        put(s3, "pin/m", f"s3://{BUCKET}/many/{{000..{count - 1:03}}}")
        state = wait_for_end(s3, "pin/m")
        assert state["objects"] == {"wanted": count, "on_disk": count, "failed": 0, "unsized": 0}
        assert state["bytes"]["wanted"] == sum(range(100, 100 + count))
        assert proxy.metric("outrider_origin_requests_total", method="HEAD") == heads
        assert proxy.metric("outrider_origin_requests_total", method="GET") == count + (0 if heads else 1)
        with pytest.raises(ClientError, match="NoSuchKey"):
            put(s3, "pin/m", f"s3://{BUCKET}/many/{{000..{count:03}}}")
    for number in range(count):
        origin.delete_object(Bucket=BUCKET, Key=f"many/{number:03}")
    origin.close()


def test_pinned_objects_are_not_evicted_by_command(proxy: Proxy) -> None:
    s3 = proxy.client()
    put(s3, "pin/p", f"s3://{BUCKET}/{KEYS[0]}")
    put(s3, "warm/set", ALL)
    wait_for_end(s3, "pin/p")
    wait_for_end(s3, "warm/set")
    put(s3, "evict/e", ALL)
    gone = read_json(s3, "evict/e")
    assert (gone["blocks"], gone["pinned_blocks"], gone["in_use_blocks"]) == (4, 4, 0)
    assert cache_of(s3, KEYS[0]) == "HIT"


def test_a_pin_of_missing_objects_pins_nothing(proxy: Proxy) -> None:
    s3 = proxy.client()
    for lines, code in (([ALL, f"s3://{BUCKET}/none"], "NoSuchKey"), ([f"s3://{BUCKET}/nothing/"], "InvalidRequest")):
        with pytest.raises(ClientError) as error:
            put(s3, "pin/p", *lines)
        assert code_of(error)[1] == code
        assert "Nothing was pinned" in code_of(error)[2]
    assert read_json(s3, "status.json")["pins"] == []


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


def test_verify_finds_rot_and_drops_it(proxy: Proxy) -> None:
    s3 = proxy.client()
    put(s3, "warm/set", ALL)
    wait_for_end(s3, "warm/set")
    path = max((proxy.cache_dir / "v2").rglob("*"), key=lambda path: path.stat().st_size)
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")  # a byte that the ramp does not have
    put(s3, "verify/all", "")
    check = wait_for_end(s3, "verify/all")
    assert (check["state"], check["blocks"]) == ("failed", {"wanted": 8, "verified": 8, "bad": 1})
    assert check["bad"][0]["error"] == "payload checksum does not match"
    assert check["bad"][0]["object"].startswith(ALL)
    put(s3, "verify/all", ALL)
    assert wait_for_end(s3, "verify/all")["blocks"] == {"wanted": 7, "verified": 7, "bad": 0}


# -- tenants ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    s3 = bucket.client()
    bucket.make_bucket(NAME)
    for tenant in ("team", "other"):
        s3.put_object(Bucket=NAME, Key=f"{tenant}/secret-name", Body=b"x" * 100)
    s3.close()
    clients = tmp_path_factory.mktemp("commands") / "clients.toml"
    clients.write_text(CLIENTS)
    with Proxy(bucket, auth="sigv4", clients=clients) as running:
        yield running


@pytest.mark.parametrize("folder", ["warm", "pin", "evict", "verify"])
def test_no_client_commands_objects_that_it_may_not_read(guarded: Proxy, folder: str) -> None:
    team = guarded.client(TEAM)
    for url in (f"s3://{NAME}/other/secret-name", f"s3://{NAME}/other/", f"s3://{NAME}/", f"s3://{NAME}",
                f"s3://{NAME}/team/../other/", f"s3://{NAME}/tea{{m,}}/secret-name", "s3://elsewhere/"):  # fmt: skip
        with pytest.raises(ClientError) as error:
            put(team, f"{folder}/x", f"s3://{NAME}/team/secret-name", url)
        assert code_of(error)[:2] == (403, "AccessDenied"), url
    put(team, f"{folder}/x", f"s3://{NAME}/team/")
    assert ask(guarded.address, "PUT", f"/_outrider/{folder}/y", (("content-length", "0"),)).code == "AccessDenied"


def test_no_client_sees_or_ends_the_commands_of_others(guarded: Proxy) -> None:
    team, other = guarded.client(TEAM), guarded.client(OTHER)
    for folder in ("warm", "pin", "evict", "verify"):
        put(team, f"{folder}/mine", f"s3://{NAME}/team/")
        with pytest.raises(ClientError) as error:
            read_json(other, f"{folder}/mine")
        assert code_of(error)[1] == "NoSuchKey"
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
