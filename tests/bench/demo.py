"""The demo: the same training run from the bucket, through Outrider, and from local disk, with a table of data waits.

`python -m tests.bench.demo` (or `make demo`) needs only this repository: the bucket is a real S3 server on loopback
behind a simulated network. Exits 1 when a run did not read exactly the samples that were written. Without torch an
emulated job reads, that of `outrider demo`."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.bench import command, demo_real
from tests.support.bucket import Bucket
from tests.support.child import Child, clean_environment
from tests.support.simulator import REPOSITORY, SimulatorProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.dataset import Shard
    from tests.support.conditions import Counts


GOAL = 0.10
# On a machine that has the CPU for it, the job waits for the local disk about 1 % of the time.
_SHORT_OF_CPU = 0.10

_LIMIT = {
    "s5cmd": "`s5cmd version` (the start of a process) and then `cat` of the file, for each shard",
    "aws": "`aws --version` (the start of a process) and then `cat` of the file, for each shard",
    "curl": "curl with a file:// URL",
    "boto3": "opened in the process itself",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One epoch of one run. GETs and bytes are the traffic of the bucket's network in that time."""

    run: str
    epoch: int
    samples: int
    first_batch_s: float
    data_wait_s: float
    samples_per_s: float
    digest: str
    bucket_gets: int
    bucket_bytes: int


def excess_wait_s(row: Row, rows: list[Row]) -> float:
    """Data wait above that of the local disk: the cost of the data path, without the pipeline's own decoding."""
    return row.data_wait_s - rows[-1].data_wait_s


def table(rows: list[Row], dataset_bytes: int) -> Table:
    drawn = Table(title=f"one epoch over {dataset_bytes / 1e6:.0f} MB, {rows[0].samples} JPEG images")
    drawn.add_column("run", no_wrap=True)
    drawn.add_column("epoch", justify="right")
    for heading in ("data wait, s", "excess wait, s", "samples/s", "GETs at bucket", "MB from bucket"):
        drawn.add_column(heading, justify="right")
    for row in rows:
        drawn.add_row(
            row.run,
            str(row.epoch),
            f"{row.data_wait_s:.2f}",
            f"{excess_wait_s(row, rows):.2f}",
            f"{row.samples_per_s:.0f}",
            str(row.bucket_gets),
            f"{row.bucket_bytes / 1e6:.0f}",
        )
    return drawn


def warm_ratio(rows: list[Row]) -> float | None:
    """Excess wait of the warm epoch (c) as a share of that straight from the bucket (a); None if (a) had none."""
    straight_s = excess_wait_s(rows[0], rows)
    return excess_wait_s(rows[2], rows) / straight_s if straight_s > 0 else None


def footnotes(rows: list[Row], opener: str) -> str:
    ratio = warm_ratio(rows)
    verdict = "nothing to compare, (a) did not wait" if ratio is None else f"{ratio:.1%} (goal: under {GOAL:.0%})"
    own = rows[-1].data_wait_s / (rows[-1].samples / rows[-1].samples_per_s)
    short = (
        f"This machine lacks the CPU for the job: even in (d) it waited {own:.0%} of the time, so the runs differ by\n"
        "the CPU that each data path takes. End other programs, or take more cores, and run it again.\n"
    )
    return (
        f"{short if own > _SHORT_OF_CPU else ''}"
        f"Excess wait, warm against straight from the bucket: {verdict}.\n"
        "Data wait: how long the training loop was blocked for its next batch, the first of each epoch left out\n"
        "everywhere, since it holds the start of the loader's workers. Excess wait: data wait above that of (d).\n"
        f"Opener: {opener}. In (d): {_LIMIT[opener]};\n"
        "what the opener spends on S3 itself is not in (d), so it counts as excess in (a), (b) and (c)."
    )


TTFB_S = 0.030
CONNECTION_BYTES_S = 40e6
TOTAL_BYTES_S = 250e6
BUCKET = "demo"
EPOCH_DEADLINE_S = 120.0
OUTRIDER_DEADLINE_S = 20.0
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of the demo.

    The emulated accelerator takes 64 samples in `step_ms`: half as much again as one worker gets from the bucket (one
    connection at 40 MB/s less two round trips a shard), yet little enough that one core decodes it with time to spare.
    """

    shards: int = 24
    samples_per_shard: int = 260
    workers: int = 1
    batch: int = 64
    step_ms: float = 150.0


SHORT = Plan(shards=4, samples_per_shard=128)


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


class Demo:
    """Owns the scratch directory's layout and the processes that the runs share."""

    def __init__(self, plan: Plan, opener: str, directory: Path, bucket: Bucket, console: Console) -> None:
        self.plan = plan
        self._opener = opener
        self._directory = directory
        self._bucket = bucket
        self._console = console
        self._shards: list[Shard] = []
        (directory / "shards").mkdir()

    @property
    def _template(self) -> str:
        return f"train-{{000000..{self.plan.shards - 1:06d}}}.tar"

    @property
    def dataset_bytes(self) -> int:
        return sum(shard.size_bytes for shard in self._shards)

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self._shards)

    @property
    def digest(self) -> str:
        return f"{sum(shard.digest for shard in self._shards) % 2**256:064x}"

    def make_dataset(self) -> None:
        """Write the shards and upload each as soon as it is there, past the simulated network."""
        self._bucket.make_bucket(BUCKET)
        with contextlib.closing(self._bucket.client()) as client, Steps(self._console) as progress:
            task = progress.begin("writing JPEG images into shards, uploading", total=self.plan.shards)
            # It imports torch, which takes seconds.
            from tests.bench.dataset import write_shards

            for shard in write_shards(
                self._directory / "shards", self.plan.shards, self.plan.samples_per_shard, os.cpu_count() or 1
            ):
                client.upload_file(str(shard.path), BUCKET, shard.path.name)
                self._shards.append(shard)
                progress.advance(task)

    def train(self, run: str, endpoint: str | None, simulator: SimulatorProcess, epochs: list[str]) -> list[Row]:
        """Run the example once, an epoch for each name; from local disk when there is no endpoint.

        Raises:
            DemoError: it failed or took too long.
        """
        opener, shards = self._source(endpoint)
        report = self._directory / f"{run}.jsonl"
        argv = [
            *(sys.executable, str(REPOSITORY / "examples" / "train_webdataset.py")),
            *("--opener", opener, "--shards", shards, "--epochs", str(len(epochs)), "--report", str(report)),
            *("--workers", str(self.plan.workers), "--batch", str(self.plan.batch)),
            *("--step-ms", str(self.plan.step_ms)),
        ]
        env = clean_environment() | self._bucket.environment()
        if endpoint is not None:
            env["AWS_ENDPOINT_URL"] = endpoint
        rows: list[Row] = []
        simulator.reset()
        child = Child(argv, log=self._directory / f"{run}.log", env=env, cwd=self._directory)
        try:
            with Steps(self._console) as progress:
                for number, name in enumerate(epochs):
                    task = progress.begin(name)
                    reported = self._wait_for_line(report, number, child, run, simulator)
                    rows.append(_row(name, reported, simulator))
                    progress.update(task, total=1, completed=1)
        finally:
            child.stop()
        return rows

    def _wait_for_line(
        self, report: Path, number: int, child: Child, run: str, simulator: SimulatorProcess
    ) -> dict[str, Any]:
        until = time.monotonic() + EPOCH_DEADLINE_S
        while True:
            # Read before the file: otherwise an end just after its last line would look like a failure.
            running = child.running
            lines = report.read_text().splitlines(keepends=True) if report.exists() else []
            if len(lines) > number and lines[number].endswith("\n"):
                line: dict[str, Any] = json.loads(lines[number])
                return line
            if not running:
                raise DemoError(f"the training of run {run} failed:\n{child.log_tail()}")
            if time.monotonic() > until:
                raise DemoError(overdue(run, simulator.reset(), self.dataset_bytes, child.log_tail()))
            time.sleep(POLL_S)

    def _source(self, endpoint: str | None) -> tuple[str, str]:
        """The example's --opener and --shards."""
        if endpoint is None:
            return "local", self._local_template()
        if self._opener != "curl":
            return self._opener, f"s3://{BUCKET}/{self._template}"
        client = self._bucket.client(endpoint)
        urls = [
            client.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": shard.path.name})
            for shard in sorted(self._shards, key=lambda shard: shard.path)
        ]
        client.close()
        file = self._directory / "urls"
        file.write_text("\n".join(urls))
        return "curl", str(file)

    def _local_template(self) -> str:
        """Local shards, with a process of the opener's kind started for each, so that the limit includes its start,
        too."""
        path = f"{self._directory}/shards/{self._template}"
        return {
            "s5cmd": f"pipe:s5cmd version > /dev/null && cat {path}",
            "aws": f"pipe:aws --version > /dev/null && cat {path}",
            "curl": f"pipe:curl --silent file://{path}",
            "boto3": path,
        }[self._opener]


def overdue(run: str, counts: Counts, dataset_bytes: int, said: str) -> str:
    """The message for an epoch that did not end in time. `counts`: those of the bucket, in that epoch. `said`: the end
    of the training's log."""
    return (
        f"an epoch of run {run} took over {EPOCH_DEADLINE_S:.0f} s. In it the bucket answered {counts.gets} GETs with "
        f"{counts.body_bytes / 1e6:.0f} MB; the dataset has {dataset_bytes / 1e6:.0f} MB. A machine that is busy with "
        f"other work may be too slow: then `make demo-short` is enough to see it run. The training's log:\n{said}"
    )


def _row(name: str, report: dict[str, Any], simulator: SimulatorProcess) -> Row:
    counts = simulator.reset()
    own = {field: report[field] for field in ("epoch", "samples", "first_batch_s", "data_wait_s", "samples_per_s")}
    return Row(run=name, digest=report["digest"], bucket_gets=counts.gets, bucket_bytes=counts.body_bytes, **own)


@contextlib.contextmanager
def outrider(origin: str, directory: Path, credentials: dict[str, str]) -> Iterator[tuple[str, str]]:
    """A proxy with an empty cache, started like a real one; yields its S3 and admin endpoints."""
    argv = [
        *(sys.executable, "-m", "outrider", "serve", "--origin", origin, "--cache-dir", str(directory / "cache")),
        *("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--auth", "loopback", "--log-format", "json"),
    ]
    env = clean_environment() | credentials
    child = Child(argv, log=directory / "outrider.log", env=env, cwd=directory)
    ready: dict[str, str] = {}

    def announced() -> bool:
        ready.update(_ready_line(child.log))
        return bool(ready)

    try:
        child.wait_until(announced, what="Outrider", deadline_s=OUTRIDER_DEADLINE_S)
        yield f"http://{ready['listen']}", f"http://{ready['admin']}"
    finally:
        child.stop()


def _ready_line(log: Path) -> dict[str, str]:
    for line in log.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict) and "ready" in (entry.get("event"), entry.get("message")):
                return entry
    return {}


class Steps(Progress):
    """Bars on a terminal. Elsewhere each step is a line, printed as it begins: bars would be printed at their end."""

    def __init__(self, console: Console) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        super().__init__(*columns, console=console, disable=not console.is_terminal)

    def begin(self, description: str, total: float | None = None) -> TaskID:
        if self.disable:
            self.console.print(description, highlight=False)
        return self.add_task(description, total=total)


def run_all(demo: Demo, directory: Path, bucket: Bucket) -> list[Row]:
    demo.make_dataset()
    with SimulatorProcess(
        bucket.address, ttfb_s=TTFB_S, connection_bytes_s=CONNECTION_BYTES_S, total_bytes_s=TOTAL_BYTES_S
    ) as simulator:
        rows = demo.train("a", simulator.endpoint, simulator, ["(a) bucket"])
        with outrider(simulator.endpoint, directory, bucket.environment()) as (endpoint, _):
            rows += demo.train("b", endpoint, simulator, ["(b) Outrider, cold", "(c) Outrider, warm"])
        rows += demo.train("d", None, simulator, ["(d) local disk"])
    return rows


def run_real(directory: Path, bucket: Bucket, console: Console) -> None:
    """Raises DemoError: the losses differ."""
    training = demo_real.Training(directory, bucket, shards=8)
    with SimulatorProcess(
        bucket.address, ttfb_s=TTFB_S, connection_bytes_s=CONNECTION_BYTES_S, total_bytes_s=TOTAL_BYTES_S
    ) as simulator:

        def trained(name: str, endpoint: str | None) -> list[demo_real.Trained]:
            console.print(name)
            return training.run(name, endpoint, simulator)

        rows = trained("(a) bucket", simulator.endpoint)
        with outrider(simulator.endpoint, directory, bucket.environment()) as (endpoint, _):
            rows += trained("(b) Outrider", endpoint)
        rows += trained("(c) local disk", None)
    console.print(demo_real.table(rows))
    if not demo_real.same(rows):
        raise DemoError("the losses differ")
    console.print("The losses of all steps were the same, bit for bit, in all three.")


def check(rows: list[Row], samples: int, digest: str) -> None:
    """Check that each epoch read every sample once, bit for bit.

    Raises:
        DemoError: one did not.
    """
    for row in rows:
        if row.samples != samples:
            raise DemoError(f"{row.run}: {row.samples} samples were read, {samples} were written")
        if row.digest != digest:
            raise DemoError(f"{row.run}: samples differ from those written: {row.digest}, not {digest}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.demo", description=__doc__)
    parser.add_argument("--short", action="store_true", help="a small dataset, for CI: the figures mean little")
    parser.add_argument(
        "--real", action="store_true", help="train a small ResNet, in place of the emulated accelerator"
    )
    parser.add_argument("--opener", choices=["s5cmd", "aws", "boto3", "curl"], default="s5cmd")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    parser.add_argument("--keep", action="store_true", help="keep shards, cache and logs")
    chosen = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        if chosen.json or chosen.keep:
            parser.error("--json and --keep need torch")
        emulated(short=chosen.short)
    # A log file has no width, and 80 columns would break the table.
    console = Console(width=None if sys.stdout.isatty() else 120)
    command.end_on_signals()
    console.print("starting an S3 server")
    try:
        with command.directory("outrider-demo-", keep=chosen.keep) as directory, Bucket() as bucket:
            if chosen.real:
                run_real(directory, bucket, console)
                return 0
            demo = Demo(SHORT if chosen.short else Plan(), chosen.opener, directory, bucket, console)
            rows = run_all(demo, directory, bucket)
        console.print(table(rows, demo.dataset_bytes))
        console.print(footnotes(rows, chosen.opener), highlight=False)
        if chosen.json:
            chosen.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
        check(rows, demo.samples, demo.digest)
    except (DemoError, RuntimeError) as error:
        console.print(f"[bold red]The demo failed:[/] {escape(str(error))}", highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    console.print(f"All {demo.samples} samples were the same, bit for bit, in all four.")
    return 0


def emulated(*, short: bool) -> NoReturn:
    """Become `outrider demo`."""
    print("There is no torch here (it is pinned to a release for Python 3.11): an emulated job reads.", flush=True)
    objects = ("--objects", "4") if short else ()
    os.execv(sys.executable, [sys.executable, "-m", "outrider", "demo", *objects])


if __name__ == "__main__":
    sys.exit(main())
