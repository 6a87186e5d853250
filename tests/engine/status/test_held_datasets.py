"""The datasets that a node reports to the operator."""

from __future__ import annotations

import asyncio

from outrider.core.ahead.planner import Planner
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion
from outrider.engine.status.held_datasets import held_datasets

REFS = [ObjectRef("b", f"{folder}/{number:03}") for folder in "xy" for number in (0, 1)]


async def test_a_dataset_that_is_evicted_while_the_others_are_reported_is_left_out() -> None:
    planner = Planner(1000, 10)
    for ref in REFS[:3]:
        planner.added(BlockKey(ref.key.encode().rjust(16)[-16:], 0), ObjectVersion(ref, '"e"', 10))
    names = [dataset["name"] for dataset in (await held_datasets(planner))["datasets"]]
    assert len(names) == 2
    reporting = asyncio.create_task(held_datasets(planner))
    await asyncio.sleep(0)
    planner.removed(BlockKey(REFS[2].key.encode().rjust(16)[-16:], 0))
    assert [dataset["name"] for dataset in (await reporting)["datasets"]] == names[:1]


async def test_the_blocks_that_are_verified_count_as_held() -> None:
    planner = Planner(1000, 10)
    for ref in REFS[:2]:
        version = ObjectVersion(ref, '"e"', 25)
        for index in range(3):
            planner.added(BlockKey(ref.key.encode().rjust(16)[-16:], index), version)
    planner.proved(REFS[0].key.encode().rjust(16)[-16:], 1)
    [dataset] = (await held_datasets(planner))["datasets"]
    assert sorted((each.size, each.held) for each in dataset["objects"]) == [(25, 0), (25, 8)]
