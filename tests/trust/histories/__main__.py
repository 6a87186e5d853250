"""`python -m tests.trust.histories --seconds 3600 --seed 7`: rounds of histories, and their table."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import time
from pathlib import Path

from tests.support.trials import Trials
from tests.trust.histories.bucket import FOLDERS
from tests.trust.histories.clients import Plan
from tests.trust.histories.rounds import Tally, play

FRESHNESS = ("ttl:5", "immutable", "always")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--round-seconds", type=float, default=300.0, help="the members of each round are new")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 10**6))
    parser.add_argument("--freshness", action="append", help=f"default: {' '.join(FRESHNESS)}, in turn")
    parser.add_argument("--etags", action="append", choices=FOLDERS, help="default: all, side by side")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    given = parser.parse_args()
    began, tally = time.monotonic(), Tally()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    say(f"--seed {given.seed}")
    left_s = given.seconds
    for number, freshness in enumerate(itertools.cycle(given.freshness or FRESHNESS)):
        if left_s <= 0:
            break
        plan = Plan(
            f"{given.seed} {number}", min(left_s, given.round_seconds), freshness, tuple(given.etags or FOLDERS),
            given.members,
        )  # fmt: skip
        left_s -= plan.seconds
        say(f"round {number}: {freshness}")
        verdict = asyncio.run(play(plan, tally, say))
        for (kind, key), alike in verdict.by_object().items():
            say(f"VIOLATION {kind} of {key}, {len(alike)} times; the first: {alike[0]}")
        say(tally.sentence())
    trials = Trials()
    tally.record(trials)
    print("\n".join(trials.table()))
    print(tally.omissions() + tally.sentence())
    if given.json:
        given.json.write_text(json.dumps(tally.as_json(), indent=1))
    return int(tally.violations.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
