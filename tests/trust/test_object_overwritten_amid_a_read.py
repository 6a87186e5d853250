"""Objects that are overwritten or deleted in mid-read: a reply has bytes of one version, or breaks visibly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.conditions import Fault, FaultKind
from tests.support.trials import rounds
from tests.trust.origin import BLOCK, BROKEN, MODES, RIGHT, Trial, World, place

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (BLOCK + 7, 3 * BLOCK, 9 * BLOCK + 1000)


def struck(trial: Trial, act: Callable[[], None]) -> Fault:
    """A fault that runs `act` in the middle of the answer to one of the trial's requests."""
    rng = trial.world.rng
    return Fault(FaultKind.ACT, path_contains=trial.key, after_bytes=place(rng, len(trial.data)), act=act)


@pytest.mark.parametrize("prefetch", ["off", "epoch"])
def test_an_object_that_is_overwritten_in_mid_read_is_never_mixed(world: World, prefetch: str) -> None:
    proxy = world.proxies[prefetch]
    for mode in MODES * rounds(3):
        trial = world.put(world.rng.choice(SIZES))
        if mode == "mixed":
            trial.warm(proxy)
        with world.conditions(struck(trial, trial.overwrite)):
            saw = trial.seen("object overwritten in mid-read", proxy, mode)
        trial.recovers(proxy, saw)


@pytest.mark.parametrize("prefetch", ["off", "epoch"])
@pytest.mark.parametrize("heeded", [True, False])
def test_between_two_ranges_of_one_read_the_version_may_not_change(world: World, prefetch: str, heeded: bool) -> None:
    """The new version is there before the second request, so that the bucket's answer is certain. A bucket that ignores
    If-Match is found out by its ETag."""
    proxy = world.proxies[prefetch]
    fault = "ETag changed between two ranges" + ("" if heeded else ", If-Match ignored")
    for _ in range(rounds(4)):
        trial = world.put(9 * BLOCK + world.rng.randrange(BLOCK))
        assert trial.read(proxy, (0, 10)) == RIGHT
        proxy.settle()
        trial.overwrite()
        deaf = Fault(FaultKind.DEAF, 0 if heeded else None, path_contains=trial.key, deaf_to=("if-match",))
        with world.conditions(deaf):
            # The first block is cached and is sent before the bucket gets the second request.
            assert trial.seen(fault, proxy, "whole") == BROKEN
        trial.recovers(proxy, BROKEN)


@pytest.mark.parametrize("prefetch", ["off", "epoch"])
def test_an_object_that_is_deleted_in_mid_read_is_whole_or_broken_and_then_gone(world: World, prefetch: str) -> None:
    proxy = world.proxies[prefetch]
    for mode in MODES * rounds(2):
        trial = world.put(world.rng.choice(SIZES))
        if mode == "mixed":
            trial.warm(proxy)
        with world.conditions(struck(trial, trial.delete)):
            assert trial.seen("object deleted in mid-read", proxy, mode) in (RIGHT, BROKEN, "404 NoSuchKey")
        proxy.settle()
        trial.delete()  # the fault may not have struck
        # While the version is fresh it may still be read, if all of it is cached. A broken read makes the proxy
        # revalidate.
        if trial.read(proxy) == BROKEN:
            assert trial.read(proxy) == "404 NoSuchKey"
        proxy.settle()


def test_a_version_that_changed_before_the_first_byte_is_read_anew_and_unnoticed(world: World) -> None:
    proxy = world.proxies["off"]
    for _ in range(rounds(4)):
        trial = world.put(3 * BLOCK)
        assert trial.read(proxy, (2 * BLOCK, 3 * BLOCK)) == RIGHT
        proxy.settle()
        trial.overwrite()
        del trial.versions[0]
        # The proxy believes that the old version is current, and has not cached its first block.
        assert trial.seen("overwritten before the read", proxy, "whole") == RIGHT


def test_a_resumed_read_is_of_the_version_that_it_began_with(world: World) -> None:
    """If the origin heeds If-Match, no byte of another version is sent over the connection."""
    trial = world.put(9 * BLOCK)
    proxy = world.proxies["off"]
    world.simulator.reset()
    with world.conditions(Fault(FaultKind.RESET, path_contains=trial.key, after_bytes=10)):
        assert trial.read(proxy) == RIGHT
    proxy.settle()
    # A HEAD for the checksums brings no byte.
    asked = [request for request in world.simulator.log() if trial.key in request.path and request.method == "GET"]
    first, *others = asked
    assert "if-match" not in first.headers
    assert others
    assert all("if-match" in request.headers for request in others)
