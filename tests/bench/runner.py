"""Runs loads against targets side by side, in alternating rounds; a target that fails is reported and left out."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Self

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tests.bench.loads import Load, measured, warm_up
from tests.bench.results import Results
from tests.bench.targets import Target
from tests.bench.world import NAME, BenchError, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

_FAILURES = (BenchError, RuntimeError, OSError, subprocess.SubprocessError)


class Runner:
    """Owns the running targets. All targets are stopped when the context ends."""

    def __init__(self, world: World, console: Console, results: Results, notes: list[str]) -> None:
        """`results` and `notes`: to which this runner's are added."""
        self.results = results
        self.notes = notes
        self._world = world
        self._console = console
        self._targets: dict[str, Target] = {}
        self._warm: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def note(self, text: str) -> None:
        self.notes.append(text)
        self._console.print(f"[yellow]{escape(text)}[/]")

    def fill_bucket(self) -> None:
        sizes = self._world.sizes
        with self._console.status(f"filling the bucket: {len(sizes)} objects, {sum(sizes.values()) / 1e6:,.0f} MB"):
            self._world.bucket.make_bucket(NAME)
            self._world.upload(self._world.bucket.endpoint)

    def start(self, kinds: list[type[Target]]) -> None:
        for kind in kinds:
            if absent := kind.lacks():
                self.note(f"{kind.name}: left out, {absent}")
                continue
            target = kind(self._world)
            with self._console.status(f"starting {kind.name}"):
                try:
                    self._targets[kind.name] = target
                    target.start()
                    target.populate()
                except _FAILURES as error:
                    self._drop(target, "left out", error)

    def stop(self) -> None:
        for target in self._targets.values():
            target.stop()
        self._targets.clear()

    def measure(self, load: Load, rounds: int) -> None:
        """All targets of the load in turn; each round begins with another one, so that none is always first."""
        names = [name for name in load.targets if name in self._targets]
        failed: set[str] = set()
        with self._progress() as progress:
            runs = rounds * load.each_round
            task = progress.add_task(load.title, total=len(names) * runs)
            for number in range(runs):
                first = number % max(1, len(names))
                for name in names[first:] + names[:first]:
                    if name not in failed and not self._measure_one(load, name, number, progress):
                        failed.add(name)
                    progress.advance(task)

    def _measure_one(self, load: Load, name: str, number: int, progress: Progress) -> bool:
        target = self._targets[name]
        try:
            is_warm = (load.name, name) in self._warm
            if not load.cold and not is_warm:
                warm_up(load, self._world, target)
                self._warm.add((load.name, name))
            # Also after the first time, which takes as long as the bucket does: some kernels drop what was not read for
            # a minute (DAMON).
            if load.warmed_anew:
                warm_up(load, self._world, target)
            sample = measured(load, self._world, target, number)
        except _FAILURES as error:
            self.note(f"{name}: {load.name} failed: {error}")
            return False
        self.results.add(sample)
        latency = "" if sample.p50_s is None else f", p50 {sample.p50_s * 1e3:.2f} ms"
        progress.console.print(
            f"  {load.name:14} {number + 1}  {name:18} {sample.mb_s:8,.0f} MB/s {sample.req_s:8,.0f} req/s{latency}"
        )
        return True

    def figures(self, title: str, measure: Callable[[Callable[[str], None]], dict[str, float]]) -> None:
        """Single figures of Outrider alone."""
        try:
            with self._console.status(title) as status:
                self.results.figures |= measure(lambda text: status.update(f"{title}: {text}"))
        except _FAILURES as error:
            self.note(f"Outrider: {title} failed: {error}")

    def _drop(self, target: Target, what: str, error: BaseException) -> None:
        self.note(f"{target.name}: {what}, {error}")
        self._targets.pop(target.name).stop()

    def _progress(self) -> Progress:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        return Progress(*columns, TimeElapsedColumn(), console=self._console, transient=True)
