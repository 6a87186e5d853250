"""The performance goals, each with the measured value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.bench import files, line, pipeline, upkeep
from tests.bench.loads import LOADS
from tests.bench.targets import (
    DIRECT,
    JUICEFS,
    NGINX_CACHE,
    OUTRIDER,
    RCLONE,
    SIGV4,
    STATIC,
    JuiceFSMount,
    OutriderMount,
    S3fs,
)
from tests.bench.world import TOTAL_BYTES_S

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.bench.results import Results

PIPELINE, UPKEEP = "pipeline", "memory"
NAMES = [*(load.name for load in LOADS), *line.NAMES, *files.NAMES, PIPELINE, UPKEEP]
_MB = 1e6


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal. `load`: the load that measures it. `measured` None: this run did not measure it, so it is neither met
    nor missed."""

    load: str
    what: str
    goal: str
    measured: str | None
    met: bool | None


def goals(results: Results, of: Collection[str]) -> list[Goal]:
    """Every goal of these loads, in order, measured or not."""
    return [
        goal
        for goal in (*_warm(results), *_cold(results), *_line(results), *_files(results), *_by_itself(results))
        if goal.load in of
    ]


def _warm(results: Results) -> list[Goal]:
    rows = []
    for kind, client in (("stream", "curl"), ("sink", "nothing copied")):
        for streams in (1, 8):
            load, what = f"{kind}-{streams}", f"big warm object, streams: {streams}, {client}"
            rows.append(_at_least(results, what, load, "mb_s", 1.0, STATIC))
            rows.append(_at_most(results, f"{what}, CPU s/GB", load, "cpu_s_gb", 1.1, STATIC))
            # On loopback, sender and receiver share work in the kernel, and chance decides which of them is charged for
            # it.
            rows.append(_at_most(results, f"{what}, all CPU s/GB", load, "machine_cpu_s_gb", 1.1, STATIC))
    for connections in (16, 64):
        load, what = f"range-{connections}", f"64 KiB ranges, connections: {connections}"
        for factor, to in ((0.6, STATIC), (3.0, RCLONE), (8.0, JUICEFS)):
            rows.append(_at_least(results, what, load, "req_s", factor, to))
        rows.append(_at_least(results, f"{what}, sigv4", load, "req_s", 0.35, STATIC, SIGV4))
    for factor, to in ((0.4, STATIC), (2.0, RCLONE)):
        rows.append(_at_least(results, "whole small objects, warm", "small-warm", "req_s", factor, to))
    return rows


def _cold(results: Results) -> list[Goal]:
    rows = [_at_least(results, "whole small objects, first pass", "small-cold", "req_s", 0.95, DIRECT)]
    for client in ("boto3", "curl"):
        rows.append(_of_total(results, f"cold epoch, 4 readers, {client}", f"epoch-4-{client}"))
        for readers in (4, 1):
            what = f"cold epoch, readers: {readers}, {client}"
            rows.append(_at_least(results, what, f"epoch-{readers}-{client}", "mb_s", 1.0, DIRECT))
    rows.append(_first_byte(results))
    read = results.median("transfer", OUTRIDER, "bucket_ratio")
    rows.append(
        _figure(
            "transfer", "parallel ranges out of order, from the bucket", "<= 1.02 x the data", read, 1.02, "{:.3f} x"
        )
    )
    faster = results.ratio("transfer", "mb_s", OUTRIDER, DIRECT)
    met = None if faster is None else faster > 1.0
    measured = None if faster is None else f"{faster:.2f} x"
    rows.append(Goal("transfer", "parallel ranges out of order", "> 1.0 x direct", measured, met))
    return rows


def _line(results: Results) -> list[Goal]:
    rows = []
    for kind, cpu in (("http", 1.0), ("https", 1.1)):
        for readers in (1, 4, 16):
            load, what = f"line-{kind}-{readers}", f"cold objects over {kind}, readers: {readers}"
            rows.append(_at_least(results, what, load, "mb_s", 1.0, NGINX_CACHE))
            rows.append(_at_most(results, f"{what}, CPU s/GB", load, "cpu_s_gb", cpu, NGINX_CACHE))
        load, what = f"line-{kind}-disk-4", f"cold objects over {kind}, cache on disk, readers: 4"
        rows.append(_at_least(results, what, load, "mb_s", 1.0, NGINX_CACHE))
    what = "cold objects over https, readers: 16, two cores"
    rows.append(_at_least(results, what, "line-https-16", "mb_s", 1.6, line.ONE_CORE, line.TWO_CORES))
    what = "objects of 4 to 100 kB, first pass"
    rows.append(_at_least(results, what, "line-small", "req_s", 1.0, NGINX_CACHE))
    rows.append(_at_most(results, f"{what}, CPU", "line-small", "cpu_us_request", 2.5, NGINX_CACHE))
    for load, size in (("hit-4k", "4 KiB"), ("hit-64k", "64 KiB"), ("hit-50kb", "a whole object of 50 kB")):
        rows.append(_at_least(results, f"hits of {size}", load, "req_s", 0.6, STATIC))
        rows.append(_at_most(results, f"hits of {size}, CPU", load, "cpu_us_request", 2.0, STATIC))
    what = "warm samples of 10 kB, by batches"
    rows.append(_at_least(results, what, "samples-batch", "req_s", 8.0, OUTRIDER, line.BATCHES))
    rows.append(_at_most(results, f"{what}, CPU", "samples-batch", "cpu_us_request", 0.35, OUTRIDER, line.BATCHES))
    rows.append(_at_least(results, "upload in parts", "upload", "mb_s", 0.95, DIRECT))
    rows.append(_at_most(results, "upload in parts, CPU s/GB", "upload", "cpu_s_gb", 1.3, line.REVERSE))
    rows.append(_at_most(results, "objects that are not cached, CPU s/GB", "relay", "cpu_s_gb", 1.3, line.REVERSE))
    return rows


def _files(results: Results) -> list[Goal]:
    rows = []
    ours, warm, cold = OutriderMount.name, JuiceFSMount.name, S3fs.name
    for load, figure, what in (("files", "req_s", "images as files"), ("file-shards", "mb_s", "shards as files")):
        rows.append(_at_least(results, f"{what}, second epoch", f"{load}-warm", figure, 1.0, warm, ours))
        rows.append(_at_least(results, f"{what}, first epoch", f"{load}-cold", figure, 1.5, cold, ours))
    for load, what in (("files-dropped", "pages dropped"), ("files-restarted", "after a new start")):
        rows.append(_at_least(results, f"images as files, {what}", load, "req_s", 1.0, warm, ours))
    return rows


def _by_itself(results: Results) -> list[Goal]:
    figures = results.figures
    warm, local = figures.get(pipeline.WARM), figures.get(pipeline.LOCAL)
    points = None if warm is None or local is None else (warm - local) * 100
    peak, idle = figures.get(upkeep.PEAK_RSS), figures.get(upkeep.IDLE_RSS)
    return [
        _figure(
            PIPELINE,
            "warm epoch of a WebDataset pipeline, data wait",
            "<= local disk's + 3 points",
            points,
            3,
            "{:+.1f}",
        ),
        _figure(UPKEEP, "memory, loaded, with 100,000 blocks", "<= 150 MB", peak and peak / _MB, 150, "{:.0f} MB"),
        _figure(UPKEEP, "memory, idle", "<= 60 MB", idle and idle / _MB, 60, "{:.0f} MB"),
        _figure(UPKEEP, "start to ready, empty", "<= 0.6 s", figures.get(upkeep.EMPTY_START), 0.6, "{:.2f} s"),
        _figure(UPKEEP, "start to ready, 100,000 blocks", "<= 0.6 s", figures.get(upkeep.FULL_START), 0.6, "{:.2f} s"),
    ]


def _at_least(results: Results, what: str, load: str, figure: str, factor: float, to: str, of: str = OUTRIDER) -> Goal:
    ratio = results.ratio(load, figure, of, to)
    measured = None if ratio is None else f"{ratio:.2f} x"
    return Goal(load, what, f">= {factor:g} x {to}", measured, None if ratio is None else ratio >= factor)


def _at_most(results: Results, what: str, load: str, figure: str, factor: float, to: str, of: str = OUTRIDER) -> Goal:
    ratio = results.ratio(load, figure, of, to)
    return _figure(load, what, f"<= {factor:g} x {to}", ratio, factor, "{:.2f} x")


def _of_total(results: Results, what: str, load: str) -> Goal:
    rate = results.median(load, OUTRIDER, "mb_s")
    share = None if rate is None else rate * _MB / TOTAL_BYTES_S
    measured = None if share is None else f"{share:.2f} x"
    return Goal(load, what, ">= 0.97 x the bucket's total", measured, None if share is None else share >= 0.97)


def _first_byte(results: Results) -> Goal:
    ours, direct = (results.median("first-byte", target, "p50_s") for target in (OUTRIDER, DIRECT))
    more_ms = None if ours is None or direct is None else (ours - direct) * 1e3
    return _figure("first-byte", "cold first byte, p50", "<= direct + 5 ms", more_ms, 5, "{:+.1f} ms")


def _figure(load: str, what: str, goal: str, value: float | None, most: float, form: str) -> Goal:
    if value is None:
        return Goal(load, what, goal, None, None)
    return Goal(load, what, goal, form.format(value), value <= most)
