"""The main benchmark: Outrider, other caches, the bucket itself, and nginx's static files as the upper limit.

`python -m tests.bench` starts a real S3 server on loopback behind a simulated network, then every target side by side.
It loads them in turn, round by round, and prints the medians and the goals. Slow results are no failure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from tests.bench import clients, command, files, line, pipeline, report, upkeep
from tests.bench.goals import NAMES, PIPELINE, UPKEEP
from tests.bench.line import LineLoad
from tests.bench.loads import LOADS, Load
from tests.bench.report import plot
from tests.bench.results import Results
from tests.bench.runner import Runner
from tests.bench.targets import ALL, OUTRIDER, before, beside_before
from tests.bench.world import SHORT, Plan, World, make_bucket
from tests.support.child import scratch_directory
from tests.support.simulator import SimulatorProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.bench.targets import Target
    from tests.support.bucket import Bucket


def main(argv: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(argv)
    if chosen.only is None:
        # The pipeline makes its own data and starts torch three times, which takes more than a minute.
        chosen.only = [name for name in NAMES if not (chosen.short and name == PIPELINE)]
    # Debian's nginx lies in a directory that is not in the PATH of users other than root.
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin"
    console = Console(width=None if sys.stdout.isatty() else 150, stderr=chosen.markdown, highlight=False)
    if absent := clients.missing():
        console.print(f"[bold red]There is no {' and no '.join(absent)}[/]: `make bench-tools` installs it.")
        return 2
    command.end_on_signals()
    try:
        results, notes = run(chosen, console)
    except KeyboardInterrupt:
        return 130
    except (RuntimeError, OSError) as error:
        console.print(f"[bold red]Nothing can be measured:[/] {escape(str(error))}")
        return 1
    _print_results(results, notes, chosen, console)
    # A run without some of the other caches still says something; without Outrider's own figures there is nothing to
    # show.
    return 1 if any(note.startswith(f"{OUTRIDER}:") for note in notes) else 0


def run(chosen: argparse.Namespace, console: Console) -> tuple[Results, list[str]]:
    plan, rounds = (SHORT, chosen.rounds or 1) if chosen.short else (Plan(), chosen.rounds or 3)
    loads = [load for load in LOADS if load.name in chosen.only]
    results, notes = Results(), list[str]()
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(scratch_directory("outrider-bench-"))
        bucket = stack.enter_context(make_bucket())
        simulator = stack.enter_context(SimulatorProcess(bucket.address))
        world = World(plan, directory, bucket, simulator, shlex.split(chosen.outrider_flags))
        runner = stack.enter_context(Runner(world, console, results, notes))
        if loads or UPKEEP in chosen.only:
            runner.fill_bucket()
        loads = _start(runner, loads, ALL, chosen)
        if "transfer" in chosen.only and clients.aws_program() is None:
            runner.note(
                "transfer: there is no aws CLI (OUTRIDER_TEST_AWS can name one), so boto3's transfer manager is used"
            )
        for load in loads:
            runner.measure(load, rounds)
        runner.stop()
        if UPKEEP in chosen.only:
            runner.figures("memory and start", lambda progress: upkeep.measure(world, rounds, progress))
        if PIPELINE in chosen.only:
            if absent := pipeline.lacks():
                runner.note(f"{PIPELINE}: left out, {absent}")
            else:
                place = directory / "pipeline"
                runner.figures("pipeline", lambda progress: pipeline.measure(world, rounds, place, console, progress))
        line_loads = [load for load in line.LOADS if load.name in chosen.only]
        for kind in dict.fromkeys(load.kind for load in line_loads):
            _run_line(kind, [load for load in line_loads if load.kind == kind], bucket, chosen, console, results, notes)
        if file_loads := [load for load in files.LOADS if load.name in chosen.only]:
            _run_files(file_loads, bucket, chosen, console, results, notes)
    return results, notes


def _start(
    runner: Runner, loads: Sequence[Load], kinds: Sequence[type[Target]], chosen: argparse.Namespace
) -> list[Load]:  # fmt: skip
    """Start the targets of these loads. Returns the loads, of the version before as well if there is one."""
    used = {name for load in loads for name in load.targets}
    wanted = [kind for kind in kinds if kind.name in used and kind.slug in chosen.targets]
    runner.start([*beside_before(wanted, chosen.before)])
    if chosen.before is None:
        return [*loads]
    return [replace(load, targets=(*load.targets, *map(before, load.targets))) for load in loads]


def _run_files(
    loads: list[Load], bucket: Bucket, chosen: argparse.Namespace, console: Console, results: Results, notes: list[str]
) -> None:
    flags = shlex.split(chosen.outrider_flags)
    with (
        files.world_of(bucket, flags, images=chosen.images, short=chosen.short) as world,
        Runner(world, console, results, notes) as runner,
    ):
        for load in _start(runner, loads, files.ALL, chosen):
            runner.measure(load, chosen.rounds or (1 if chosen.short else 3))


def _run_line(
    kind: str, loads: list[LineLoad], bucket: Bucket, chosen: argparse.Namespace, console: Console,
    results: Results, notes: list[str],
) -> None:  # fmt: skip
    """The loads of one kind, in a world of their own."""
    flags = shlex.split(chosen.outrider_flags)
    with (
        line.world_of(kind, bucket, flags, short=chosen.short) as world,
        Runner(world, console, results, notes) as runner,
    ):
        for load in _start(runner, loads, line.ALL, chosen):
            runner.measure(load, chosen.rounds or (1 if chosen.short else 3))


def _print_results(results: Results, notes: list[str], chosen: argparse.Namespace, console: Console) -> None:
    loads = [load for load in (*LOADS, *line.LOADS, *files.LOADS) if results.targets(load.name)]
    grids = [*(report.load_grid(load, results) for load in loads), *report.figure_grids(results)]
    grids.append(report.goals_grid(results, chosen.only))
    if chosen.before is not None:
        grids.append(report.before_grid(results))
    machine = report.machine()
    if chosen.markdown:
        print("\n".join(f"- {name}: {value}" for name, value in machine.items()), end="\n\n")
        print("\n".join(grid.markdown() for grid in grids))
        print("\n".join(f"- {note}" for note in notes))
    else:
        console.print(" · ".join(f"{name} {value}" for name, value in machine.items()), style="dim")
        for grid in grids:
            console.print(grid.drawn())
        for note in notes:
            console.print(escape(note))
    if chosen.json:
        chosen.json.write_text(json.dumps(report.as_json(results, chosen.only, machine, notes), indent=1) + "\n")
    if chosen.plot:
        plot(results, loads, chosen.plot)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    known = list(dict.fromkeys(target.slug for target in (*ALL, *line.ALL, *files.ALL)))
    parser.add_argument("--only", type=_names(NAMES), default=None, metavar="LOAD,...", help=", ".join(NAMES))
    parser.add_argument("--targets", type=_names(known), default=known, metavar="TARGET,...", help=", ".join(known))
    parser.add_argument("--rounds", type=int, default=None, help="default: 3; with --short 1")
    parser.add_argument("--images", type=int, default=None, help="images of the loads files-*; default: 10000")
    parser.add_argument("--short", action="store_true", help="small data, no pipeline: tests the harness, not speed")
    parser.add_argument("--outrider-flags", default="", metavar="FLAGS", help="further flags of `outrider serve`")
    parser.add_argument(
        "--before", type=Path, metavar="PYTHON", help="also the version of Outrider that this interpreter imports"
    )
    parser.add_argument("--markdown", action="store_true", help="tables as Markdown, the progress to stderr")
    parser.add_argument("--json", type=Path, help="write all samples to this file")
    parser.add_argument("--plot", type=Path, help="draw one picture (PNG or SVG)")
    return parser


def _names(known: list[str]) -> Callable[[str], list[str]]:
    def parsed(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}: there are {', '.join(known)}")
        return names

    return parsed


if __name__ == "__main__":
    sys.exit(main())
