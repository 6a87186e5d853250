"""Fixtures of the trust tests that put faults between the proxy and the origin."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import TRIED
from tests.support.proxy import Proxy
from tests.support.simulator import Simulator
from tests.trust.origin import BLOCK, NAME, Proxies, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket


# The timeout is this short so that a stall costs little time.
KINDS: dict[str, dict[str, Any]] = {
    "off": {"prefetch": "off"},
    "epoch": {"prefetch": "epoch"},
    # No block is cached, so that all bytes pass by the cache.
    "relay": {"prefetch": "off", "policy": "none", "cache_size": "4KiB"},
    # Clients of a bucket that stays away are not kept waiting.
    "hasty": {"prefetch": "off", "origin_patience_s": "0.5"},
    "impatient, off": {"prefetch": "off", "origin_timeout_s": "0.7"},
    "impatient, epoch": {"prefetch": "epoch", "origin_timeout_s": "0.7"},
    "impatient, relay": {"prefetch": "off", "policy": "none", "cache_size": "4KiB", "origin_timeout_s": "0.7"},
}


@pytest.fixture(scope="module")
def running_world(bucket: Bucket) -> Iterator[World]:
    bucket.make_bucket(NAME)
    direct = bucket.client()
    with ExitStack() as stack:
        stack.callback(direct.close)
        keys = (bucket.access_key, bucket.secret_key)
        simulator = stack.enter_context(Simulator(bucket.address, keys=keys))

        def proxy(kind: str) -> Proxy:
            return stack.enter_context(Proxy(bucket, simulator.endpoint, block_size=str(BLOCK), **KINDS[kind]))

        yield World(direct, simulator, Proxies(proxy), TRIED)


@pytest.fixture
def world(running_world: World, request: pytest.FixtureRequest) -> Iterator[World]:
    """No faults strike at first. All chance is seeded with the test's name alone."""
    running_world.rng = random.Random(request.node.name)
    running_world.simulator.conditions.faults = []
    yield running_world
    running_world.simulator.conditions.faults = []
    running_world.simulator.release()
    running_world.settle()
