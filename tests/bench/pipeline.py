"""The demo's WebDataset pipeline with warm epochs: the share of an epoch that waits for data."""

from __future__ import annotations

import importlib.util
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.console import Console

    from tests.bench.demo import Row
    from tests.bench.world import World

STRAIGHT, COLD, WARM, LOCAL = "direct", "Outrider, cold", "Outrider, warm", "local disk"
_NEEDS = ("torch", "webdataset", "PIL")


def lacks() -> str | None:
    """The reason why it cannot run here; None: it can."""
    absent = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    return f"there is no {', '.join(absent)} (the extra `examples`)" if absent else None


def measure(
    world: World, rounds: int, directory: Path, console: Console, progress: Callable[[str], None]
) -> dict[str, float]:
    """The data wait's share of the time of an epoch, by the names above; the median where there are several epochs.

    Raises:
        BenchError, RuntimeError: the training failed, or read other samples than were written.
    """
    from tests.bench.demo import Demo, DemoError, Plan, check, outrider
    from tests.bench.world import BenchError

    directory.mkdir()
    size = world.plan
    plan = Plan(size.pipeline_shards, size.pipeline_samples, step_ms=size.pipeline_step_ms)
    demo = Demo(plan, "s5cmd", directory, world.bucket, console)
    world.calm()
    progress("making its dataset")
    demo.make_dataset()
    world.far_away()
    simulator = world.simulator
    try:
        progress("straight from the bucket")
        rows = {STRAIGHT: demo.train("direct", simulator.endpoint, simulator, ["direct"])}
        progress("through Outrider")
        with outrider(simulator.endpoint, directory, world.bucket.environment()) as (endpoint, _):
            epochs = ["Outrider, cold", *(f"Outrider, warm {number + 1}" for number in range(rounds))]
            through = demo.train("outrider", endpoint, simulator, epochs)
        rows |= {COLD: through[:1], WARM: through[1:]}
        progress("from local disk")
        rows[LOCAL] = demo.train("local", None, simulator, [f"local disk {number + 1}" for number in range(rounds)])
        check([row for part in rows.values() for row in part], demo.samples, demo.digest)
    except DemoError as error:
        raise BenchError(str(error)) from error
    return {name: statistics.median(_wait_share(row) for row in part) for name, part in rows.items()}


def _wait_share(row: Row) -> float:
    # Both are counted from the first batch on.
    return row.data_wait_s / (row.samples / row.samples_per_s)
