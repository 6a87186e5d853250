"""The requests that a warm-up costs at the bucket: one GET a small object, and none for its later readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.conditions import Fault, FaultKind
from tests.support.control_bucket import put, wait_for_end
from tests.support.fakes import ramp
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator

NAME = "warm-requests"
MIB = 1024 * 1024
OBJECTS = 40


@pytest.fixture
def proxy(bucket: Bucket, simulator: Simulator) -> Iterator[Proxy]:
    with Proxy(bucket, simulator.endpoint, block_size="1MiB") as running:
        yield running


def stored(bucket: Bucket, prefix: str, size: int) -> list[str]:
    keys = [f"{prefix}/{number:03}" for number in range(OBJECTS)]
    bucket.store(NAME, dict.fromkeys(keys, ramp(size)))
    return keys


def read(s3: Any, keys: list[str]) -> set[bytes]:
    """Read as boto3 does, with checksums of the whole object."""
    return {s3.get_object(Bucket=NAME, Key=key, ChecksumMode="ENABLED")["Body"].read() for key in keys}


def test_a_small_object_that_a_list_showed_costs_one_get_and_no_head(
    bucket: Bucket, simulator: Simulator, proxy: Proxy
) -> None:
    for command, size in (("warm", 0), ("warm", 1000), ("pin", MIB)):
        keys, s3 = stored(bucket, f"{command}-{size}", size), proxy.client()
        simulator.reset()
        put(s3, f"{command}/all", f"s3://{NAME}/{command}-{size}/")
        assert wait_for_end(s3, f"{command}/all")["objects"]["on_disk"] == OBJECTS
        assert simulator.counts().by_method == {"GET": 1 + OBJECTS}
        assert read(s3, keys) == {ramp(size)}
        assert simulator.counts().by_method == {"GET": 1 + OBJECTS}


def test_without_a_list_the_first_objects_show_the_size_of_the_others(
    bucket: Bucket, simulator: Simulator, proxy: Proxy
) -> None:
    keys, s3 = stored(bucket, "named", 1000), proxy.client()
    put(s3, "warm/all", *(f"s3://{NAME}/{key}" for key in keys))
    assert wait_for_end(s3, "warm/all")["objects"]["on_disk"] == OBJECTS
    assert simulator.counts().by_method == {"GET": OBJECTS}
    assert read(s3, keys) == {ramp(1000)}
    # These were requested before any had answered: see `_OBJECTS_AT_ONCE`.
    assert simulator.counts().heads <= 16


def test_an_object_that_grows_after_the_list_is_filled_whole(
    bucket: Bucket, simulator: Simulator, proxy: Proxy
) -> None:
    keys, s3, direct = stored(bucket, "grows", 1000), proxy.client(), bucket.client()
    grown = ramp(5 * MIB + 1)
    simulator.conditions.faults = [
        # The LIST is complete, and on its way.
        Fault(FaultKind.ACT, act=lambda: direct.put_object(Bucket=NAME, Key=keys[0], Body=grown))
    ]
    put(s3, "warm/all", f"s3://{NAME}/grows/")
    warmed = wait_for_end(s3, "warm/all")
    assert (warmed["state"], warmed["objects"]["on_disk"]) == ("done", OBJECTS)
    gets = simulator.counts().gets
    assert read(s3, keys[:1]) == {grown}
    assert simulator.counts().gets == gets
    direct.close()
