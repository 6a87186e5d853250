"""Members as real processes on hosts of their own, under writes, reads and faults: no client sees what
docs/reliability.md and docs/cluster.md rule out. The faults are drawn from a seed, which a failure names."""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.support.trials import SCALE, rounds
from tests.trust.histories.clients import Plan
from tests.trust.histories.rounds import Tally, play

if TYPE_CHECKING:
    from tests.support.trials import Trials

_IS_LONG = SCALE > 1
SEED = int(os.environ.get("OUTRIDER_TEST_SEED", "0")) or (random.SystemRandom().randrange(1, 10**6) if _IS_LONG else 1)
"""That of a long run is drawn; `make test` has the same faults each time."""
_ROUND_S = 300.0


@pytest.mark.parametrize("freshness", ["ttl:5", "immutable", "always"] if _IS_LONG else ["ttl:2"])
def test_clients_see_nothing_that_is_ruled_out(freshness: str, trials: Trials) -> None:
    left_s, tally = float(rounds(5, of=8)), Tally()
    while left_s > 0:
        seed, seconds = f"{SEED} {left_s:.0f}", min(left_s, _ROUND_S)
        left_s -= seconds
        plan = Plan(seed, seconds, freshness) if _IS_LONG else Plan(
            seed, seconds, freshness, longest_s=2.0, hello_s=1.0, read_pause_s=0.1
        )  # fmt: skip
        verdict = asyncio.run(play(plan, tally))
        found = [f"{kind} of {key}: {alike[0]}" for (kind, key), alike in verdict.by_object().items()]
        assert not found, f"OUTRIDER_TEST_SEED={SEED}, {freshness}:\n" + "\n".join(found)
        assert verdict.bound_reads > 0
    tally.record(trials)
    print(tally.omissions() + tally.sentence())
