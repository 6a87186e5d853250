"""Parts of the status page: the map of a dataset, the rates, and the recent errors, all bounded in size."""

from __future__ import annotations

import logging

from outrider.adapters.process.recent_errors import keep_recent_errors
from outrider.core.ahead.planner import Planner
from outrider.core.insight.dataset_map import CELLS_MAX, data_bytes, map_of
from outrider.core.insight.rates import Rates
from outrider.core.insight.recent_errors import RecentErrors
from outrider.core.model import BlockKey, Extent, ObjectRef, ObjectVersion

BLOCK, SIZE = 100, 200


def ref(number: int) -> ObjectRef:
    return ObjectRef("bucket", f"train-{number:06d}.tar")


def version(number: int) -> ObjectVersion:
    return ObjectVersion(ref(number), f'"{number}"', SIZE)


def block(number: int, index: int) -> BlockKey:
    return BlockKey(b"%016d" % number, index)


def a_planner(objects: int) -> Planner:
    planner = Planner(10**9, BLOCK)
    planner.discovery.listed("bucket", [(ref(number).key, SIZE) for number in range(objects)])
    return planner


def test_each_object_has_a_letter_in_the_order_of_the_names() -> None:
    planner = a_planner(6)
    for number in (1, 2):
        planner.requested("job", ref(number), SIZE, Extent(0, SIZE), 2.0)
    for number in (2, 4):
        for index in (0, 1):
            planner.added(block(number, index), version(number))
    planner.added(block(3, 0), version(3))
    (dataset,) = planner.registry.datasets()
    outstanding = dataset.names.add(ref(5).key)
    assert map_of(dataset, lambda key: key == outstanding) == "arRoco"
    assert data_bytes(dataset) == 6 * SIZE
    assert dataset.kept_bytes == 5 * BLOCK


def test_bytes_of_dropped_blocks_are_subtracted_again() -> None:
    planner = a_planner(2)
    for index in (0, 1):
        planner.added(block(1, index), version(1))
    (dataset,) = planner.registry.datasets()
    for index in (0, 1):
        planner.removed(block(1, index))
    assert dataset.kept_bytes == 0


def test_the_map_of_many_objects_is_bounded() -> None:
    planner = a_planner(20_000)
    for number in range(10_000):
        for index in (0, 1):
            planner.added(block(number, index), version(number))
    (dataset,) = planner.registry.datasets()
    cells = map_of(dataset, lambda _: False)
    assert cells == "c" * (CELLS_MAX // 2) + "a" * (CELLS_MAX // 2)
    assert data_bytes(dataset) == 20_000 * SIZE


def test_rates_cover_the_last_two_minutes() -> None:
    line = Rates()
    assert line.rates() == {}
    for second in range(200):
        line.note(float(second), {"disk": second * 10.0, "origin": 5.0})
    rates = line.rates()
    assert rates == {"disk": [10] * 120, "origin": [0] * 120}


def test_an_error_that_occurs_again_is_counted() -> None:
    recent_errors = RecentErrors()
    for at in range(3):
        recent_errors.add("disk failed", "x" * 1000, "warning", float(at))
    recent_errors.add("other", "", "error", 9.0)
    last = recent_errors.last()
    assert [(error.what, error.times, error.at) for error in last] == [("other", 1, 9.0), ("disk failed", 3, 2.0)]
    assert len(last[1].detail) == 300
    for at in range(200):
        recent_errors.add(f"trouble {at}", "", "error", float(at))
    assert len(recent_errors.last()) == 50


def test_warnings_of_the_log_are_kept_with_their_fields_and_no_lower_levels() -> None:
    recent_errors, log = RecentErrors(), logging.getLogger("outrider.test")
    with keep_recent_errors(recent_errors):
        log.info("nothing")
        log.warning("store failed", extra={"act": "write"})
        try:
            raise ValueError("a secret")
        except ValueError:
            log.exception("request failed", extra={"request": "7"})
    log.warning("too late")
    assert [(error.what, error.detail, error.level) for error in reversed(recent_errors.last())] == [
        ("store failed", "act: write", "warning"), ("request failed", "request: 7, ValueError", "error"),
    ]  # fmt: skip
