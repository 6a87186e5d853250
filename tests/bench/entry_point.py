"""`make bench-start`: how much later a command in the image begins with `outrider run --` in front of it.

The image is built by buildah, where it is; else the Dockerfile's steps are taken without a container (`--steps` asks
for that). Both ways are measured by turns, from the start of the container to the first byte of the command's output.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from tests.support.child import clean_environment, scratch_directory
from tests.support.image import Buildah, Built, NoBase, missing, run_argv, steps_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROOT = Path(__file__).parents[2]
GOAL_S = 1.0
COMMAND = ["python", "-c", "print('begun')"]
ENTRY = ["outrider", "run", "--cache-dir", "/tmp/outrider", "--"]
# As a platform gives them to its containers: a region, and the place of the role's keys, which a start does not ask.
ENVIRON = {"AWS_REGION": "us-east-1", "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:9/role"}
IMAGE = "localhost/outrider:start"

Start = tuple[list[str], "Mapping[str, str]"]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds from the start to the first output: of the command alone, and of the command behind `outrider run`."""

    alone_s: Sequence[float]
    behind_s: Sequence[float]

    @property
    def added_s(self) -> float:
        return median(self.behind_s) - median(self.alone_s)

    def table(self) -> str:
        rows = [("the command alone", self.alone_s), ("behind `outrider run --`", self.behind_s)]
        lines = [
            "| first output after the start of the container | median, s | fastest | slowest |",
            "| --- | --- | --- | --- |",
        ]
        lines += [f"| {name} | {median(each):.2f} | {min(each):.2f} | {max(each):.2f} |" for name, each in rows]
        return "\n".join([*lines, f"| added | {self.added_s:.2f} (goal: {GOAL_S:.1f} at most) | | |"])


def first_output_s(argv: Sequence[str], environ: Mapping[str, str]) -> float:
    """Raises RuntimeError: it ended without a word, or failed."""
    began = time.perf_counter()
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        word = process.stdout.read(1)
        took_s = time.perf_counter() - began
        process.stdout.read()
    if process.returncode != 0 or not word:
        raise RuntimeError(f"{' '.join(argv)} ended with {process.returncode}")
    return took_s


def measure(start: Callable[[list[str]], Start], rounds: int) -> Times:
    """`start` says how a command is started in the image. The first round, which fills the page
    cache, does not count."""
    ways = ([*COMMAND], [*ENTRY, *COMMAND])
    found = [[first_output_s(*start(way)) for way in ways] for _ in range(rounds + 1)][1:]
    return Times(*zip(*found, strict=True))


@contextmanager
def built_image() -> Iterator[Callable[[list[str]], Start]]:
    """In a container of the image. Raises NoBase."""
    [base] = {step.rest.split()[0] for step in steps_of(ROOT / "Dockerfile") if step.word == "FROM"}
    with scratch_directory("outrider-buildah-") as directory:
        buildah = Buildah(directory)
        print(f"base image: {buildah.bring_base(base)}", file=sys.stderr)
        make = ["make", "image", "BUILDER=buildah", f"IMAGE={IMAGE}"]
        subprocess.run(make, cwd=ROOT, env=buildah.environ, check=True, stdout=subprocess.DEVNULL)
        container = buildah.call("from", "--pull-never", IMAGE)
        yield lambda command: (run_argv(container, command, ENVIRON), buildah.environ)
        buildah.call("rm", container)


@contextmanager
def built_by_steps() -> Iterator[Callable[[list[str]], Start]]:
    """In the environment that the Dockerfile's steps make, by this interpreter, as this user."""
    with scratch_directory("outrider-image-") as directory:
        built = Built(directory, ROOT, str(Path(sys.executable).resolve()), compiled=True)
        for step in steps_of(ROOT / "Dockerfile"):
            built.take(step)
        environ = {**clean_environment(), **built.environment, **ENVIRON}
        yield lambda command: (["env", *command], environ)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.entry_point", description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--steps", action="store_true", help="no builder: take the Dockerfile's steps")
    chosen = parser.parse_args()
    why = "--steps" if chosen.steps else missing()
    if why is None:
        try:
            with built_image() as start:
                print(measure(start, chosen.rounds).table())
            return
        except NoBase as error:
            why = str(error)
    print(f"without a container: {why}", file=sys.stderr)
    with built_by_steps() as start:
        print(measure(start, chosen.rounds).table())


if __name__ == "__main__":
    main()
