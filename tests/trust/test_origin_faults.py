"""Faults of the origin in mid-answer: broken, late, wrong or contradictory answers. Clients get the right bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.conditions import Fault, FaultKind
from tests.support.trials import SCALE, rounds
from tests.trust.origin import BLOCK, BROKEN, MODES, RIGHT, Trial, World, place

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

# One less than the proxy's attempts: even if all faults strike the same request, one attempt is left.
BUDGET = 4


def bodily(kind: FaultKind, times_max: int = BUDGET, **more: object) -> Callable[[random.Random, Trial], Fault]:
    def make(rng: random.Random, trial: Trial) -> Fault:
        times, at = rng.randint(1, times_max), place(rng, len(trial.data))
        return Fault(kind, times, path_contains=trial.key, after_bytes=at, **more)  # type: ignore[arg-type]

    return make


def verbal(kind: FaultKind, **more: object) -> Callable[[random.Random, Trial], Fault]:
    def make(rng: random.Random, trial: Trial) -> Fault:
        by = rng.choice((1, 100, BLOCK))
        return Fault(kind, rng.randint(1, BUDGET), path_contains=trial.key, by_bytes=by, **more)  # type: ignore[arg-type]

    return make


UNNOTICED = {
    "connection reset in mid-body": bodily(FaultKind.RESET),
    "body cut short": bodily(FaultKind.TRUNCATE),
    "body as short as a Content-Length that lies": bodily(FaultKind.SHORTER),
    "body longer than asked for": verbal(FaultKind.LONGER),
    "stall in mid-body": bodily(FaultKind.STALL, 1),
    "first byte slower than the timeout": bodily(FaultKind.LATE, 1),
    "first byte slow": bodily(FaultKind.LATE, for_s=0.05),
    "no answer": bodily(FaultKind.DROP),
    "500": bodily(FaultKind.STATUS, status=500),
    "503 SlowDown": bodily(FaultKind.STATUS, status=503),
    "Content-Range shifted": verbal(FaultKind.WRONG_RANGE),
    "Content-Range of another length": verbal(FaultKind.OTHER_LENGTH),
    "other bytes than those asked for": verbal(FaultKind.ASTRAY),
    "200 instead of 206": verbal(FaultKind.DEAF),
}


# The short form takes two of the three kinds of proxies for each fault, in turn.
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (fault, kind)
        for number, fault in enumerate(UNNOTICED)
        for turn, kind in enumerate(("off", "epoch", "relay"))
        if SCALE > 1 or (number + turn) % 3
    ],
)
def test_below_the_retry_budget_the_client_notices_nothing(world: World, fault: str, kind: str) -> None:
    slow = fault in ("stall in mid-body", "first byte slower than the timeout")
    proxy = world.proxies[f"impatient, {kind}" if slow else kind]
    for mode in MODES * rounds(1):
        trial = world.put()
        if mode == "mixed":
            trial.warm(proxy)
        with world.conditions(UNNOTICED[fault](world.rng, trial)):
            assert trial.seen(fault, proxy, mode) == RIGHT
        assert trial.read(proxy) == RIGHT
        proxy.settle()


def shrunk(rng: random.Random, trial: Trial) -> Fault:
    """The fault strikes once. It never shrinks the object to the length that this one answer brings: no other answer
    would contradict that length."""
    by = rng.randrange(1, max(2, len(trial.data) - BLOCK))
    return Fault(FaultKind.OTHER_TOTAL, path_contains=trial.key, by_bytes=-by)


LIES = {
    "Content-Range of another total": verbal(FaultKind.OTHER_TOTAL),
    "Content-Range of a smaller total": shrunk,
    "another ETag": verbal(FaultKind.OTHER_ETAG),
}


@pytest.mark.parametrize("prefetch", ["off", "epoch"])
@pytest.mark.parametrize("fault", LIES)
def test_an_answer_that_contradicts_another_is_cut_and_not_believed_again(
    world: World, fault: str, prefetch: str
) -> None:
    proxy = world.proxies[prefetch]
    for mode in MODES * rounds(1):
        trial = world.put()
        if mode == "mixed":
            trial.warm(proxy)
        made = LIES[fault](world.rng, trial)
        # The fault does not always strike the first request, and so the contradicted answer varies.
        made.probability = world.rng.choice((1.0, 0.5))
        with world.conditions(made):
            saw = trial.seen(fault, proxy, mode)
        assert saw in (RIGHT, BROKEN)
        trial.recovers(proxy, saw)
