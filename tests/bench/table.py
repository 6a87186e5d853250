"""The demo's table and the footnotes below it."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

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
