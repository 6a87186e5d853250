"""Warm-ups cut off by a clean stop resume after the next start, if their key still has the grant."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from outrider.adapters.state import warmup_file
from outrider.core.maintenance.object_list import ObjectList, parse_list
from outrider.http.control import maintenance
from tests.support.conditions import Fault, FaultKind
from tests.support.control_bucket import put, read_json, wait_for_end, wait_until
from tests.support.fakes import ramp
from tests.support.proxy import Keys, Proxy
from tests.support.rawhttp import ask

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator

NAME = "warm-restart"
COUNT, SIZE = 4, 100_000
PREFIX = f"s3://{NAME}/train/"
STAYS: Keys = ("STAYS", "stays/secret")
NARROWED: Keys = ("NARROWED", "narrowed/secret")
GOES: Keys = ("GOES", "goes/secret")


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.store(NAME, {f"train/{number}": ramp(SIZE) for number in range(COUNT)})


def names(s3: Any) -> list[str]:
    return [warmup["name"] for warmup in read_json(s3, "status.json")["warmups"]]


def stalled() -> Fault:
    return Fault(FaultKind.STALL, times=None, path_contains="train/", after_bytes=1000)


def test_a_warm_up_resumes_ends_and_does_not_begin_again(bucket: Bucket, simulator: Simulator) -> None:
    with Proxy(bucket, simulator.endpoint) as proxy:
        simulator.conditions.faults = [stalled()]
        s3 = proxy.client()
        put(s3, "warm/done", f"s3://{NAME}/none")
        assert wait_for_end(s3, "warm/done")["state"] == "failed"
        put(s3, "warm/cut", PREFIX, rate="500MB")
        wait_until(lambda: any("/train/" in request.path for request in simulator.log()))
        proxy.stop()
        simulator.conditions.faults = []
        simulator.release()
        proxy.start()
        s3 = proxy.client()
        warmed = wait_for_end(s3, "warm/cut")
        assert (warmed["state"], warmed["objects"]["on_disk"]) == ("done", COUNT)
        assert ask(proxy.address, "GET", "/_outrider/warm/done").status == 404
        simulator.conditions.faults = [Fault(FaultKind.LATE, times=None, path_contains="none")]
        put(s3, "warm/next", f"s3://{NAME}/none")
        proxy.restart()
        wait_until(lambda: names(proxy.client()) == ["next"])


def test_a_warm_up_of_0_2_is_resumed_and_saved_again(bucket: Bucket) -> None:
    """0.2 knew no copies."""
    with Proxy(bucket) as proxy:
        proxy.stop()
        (proxy.cache_dir / "warmups").write_text(json.dumps({"format": 1, "warmups": [ENTRY]}))
        proxy.start()
        wait_until(lambda: names(proxy.client()) == ["x"])
        warmed = wait_for_end(proxy.client(), "warm/x")
        assert (warmed["copies"], warmed["notes"]) == ("1", [])


def clients(path: Path, **prefixes: str) -> None:
    keys = {"stays": STAYS, "narrowed": NARROWED, "goes": GOES}
    entries = (
        f'[[client]]\nname = "{name}"\naccess_key = "{keys[name][0]}"\nsecret_key = "{keys[name][1]}"\n'
        f'grants = [{{bucket = "{NAME}", prefix = "{prefix}", access = "read"}}]\n'
        for name, prefix in prefixes.items()
    )
    path.write_text("".join(entries))


def test_a_warm_up_resumes_only_for_a_key_that_still_has_the_grant(bucket: Bucket, tmp_path: Path) -> None:
    clients(path := tmp_path / "clients.toml", stays="", narrowed="", goes="")
    with Proxy(bucket, auth="sigv4", clients=path, block_size="64KiB") as proxy:
        for keys in (NARROWED, GOES, STAYS):  # resumed in this order: when the last one is there, the others are not
            put(proxy.client(keys), "warm/slow", PREFIX, rate="1B")
        proxy.stop()
        clients(path, stays="", narrowed="elsewhere/")
        proxy.start()
        s3 = proxy.client(STAYS)
        wait_until(lambda: names(s3) == ["slow"])
        assert read_json(s3, "warm/slow")["state"] == "running"
        assert names(proxy.client(NARROWED)) == []
        clients(path, stays="", narrowed="", goes="")
        proxy.restart()
        wait_until(lambda: names(proxy.client(STAYS)) == ["slow"])
        assert names(proxy.client(GOES)) == []


def test_a_stop_while_warm_ups_are_resumed_loses_none(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, gate = threading.Event(), threading.Event()

    def first_alone(body: bytes) -> ObjectList:
        if b"2" in body:
            reached.set()
            gate.wait(60)
        return parse_list(body)

    async def save(*args: Any) -> None:
        gate.set()
        await kept(*args)

    kept = warmup_file.save
    entries = [ENTRY | {"name": name, "body": PREFIX + name, "bytes_per_s": 1.0} for name in "12"]
    with Proxy(bucket) as proxy:
        proxy.stop()
        (proxy.cache_dir / "warmups").write_text(json.dumps({"format": 1, "warmups": entries}))
        with monkeypatch.context() as patched:
            patched.setattr(maintenance, "parse_list", first_alone)
            patched.setattr(warmup_file, "save", save)
            proxy.start()
            assert reached.wait(60)
            proxy.stop()
        proxy.start()
        wait_until(lambda: sorted(names(proxy.client())) == ["1", "2"])
        wait_until(lambda: not (proxy.cache_dir / "warmups").exists())


ENTRY = {"owner": "", "name": "x", "body": PREFIX, "at": 1.0, "bytes_per_s": 0.0}
ENTRIES: list[dict[str, object]] = [{}, ENTRY | {"body": "\ud800"}, ENTRY | {"at": 1e30}, ENTRY | {"bytes_per_s": -1.0},
                                    ENTRY | {"copies": -1}]  # fmt: skip
OF_ENTRIES = [json.dumps({"format": 1, "warmups": [entry]}) for entry in ENTRIES]


def test_a_malformed_file_of_warm_ups_is_ignored(bucket: Bucket) -> None:
    with Proxy(bucket) as proxy:
        for written in ("", "[]", '{"format": 2, "warmups": []}', *OF_ENTRIES):
            proxy.stop()
            (proxy.cache_dir / "warmups").write_text(written)
            proxy.start()
            assert read_json(proxy.client(), "status.json")["warmups"] == []
