"""TDCS' job: 128 GPUs on 16 nodes, simulated, and eight nodes as processes in the same proportions.

Source: Zhang and Che, "TDCS", 2021: ResNet50 on 128 V100, two to three times faster than from remote storage. So that
storage gave a third to a half of the bytes that the GPUs took; here the bucket gives 0.4 of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from tests.bench.cluster_reads import BLOCK, on_a_switch
from tests.bench.cluster_simulated import IMAGE_BYTES, SHARD_BYTES, simulate
from tests.bench.cluster_world import MIB, Data, Direct, EpochReport, Place, checked, run_epoch
from tests.bench.papers_table import Cells, Figure, Line, Table

# 128 GPUs take 1,100 images of 110 kB a second: 15.5 GB/s.
_SIMULATED_BUCKET = "6.2GB/s"
_NODES = 8
# As in the row `eight` of `tests.bench.cluster`: two cores carry it for readers, nodes and bucket.
_TAKEN_BYTES_S = 92e6
_BUCKET_BYTES_S = 0.4 * _TAKEN_BYTES_S
# A link carries 3.2 times what its node takes, as 25 Gbit/s do before eight GPUs.
_LINK_BYTES_S = 3.2 * _TAKEN_BYTES_S / _NODES
# All caches together, of the data. There are few blocks, so some owners have more than others.
_HELD = 1.5
_EPOCHS = (1, 2, 3)

DIRECT, ALONE, ONE = "the bucket alone", "Outrider, each node by itself", "Outrider, one cache (`--peers`)"
_WAYS = {"direct": DIRECT, "by itself": ALONE, "cluster": ONE}
LIVE = f"{_NODES} nodes"
SHARDS, IMAGES = "16 x 8 GPUs, shards", "16 x 8 GPUs, images"
PAPER: dict[str, Cells] = {"TDCS": {"128 V100": Figure(None, 2.0, 3.0)}}
_FIRST, _LATER = "epoch 1", "later"

Used = dict[str, list[float]]
"""The GPU utilisation of each epoch, in percent, by way."""


def table(directory: Path, scale: float, progress: Callable[[str], None]) -> Table:
    shards, images = max(512, int(2048 * scale)), max(1024, int(20_480 * scale))
    used: dict[str, Used] = {}
    progress(LIVE)
    data = Data(max(16, int(64 * scale)), 8 * MIB)
    used[LIVE] = _live(directory, data, progress)
    for place, count, size_bytes, epochs in ((SHARDS, shards, SHARD_BYTES, 3), (IMAGES, images, IMAGE_BYTES, 2)):
        progress(place)
        rows, _ = simulate(count, size_bytes, epochs=epochs, bucket=_SIMULATED_BUCKET)
        used[place] = simulated(rows)
    return compared(
        used,
        [
            f"{LIVE}, live: {data.count} shards of 8 MiB, {_TAKEN_BYTES_S / 1e6:.0f} MB/s taken in all, a bucket of "
            f"{_BUCKET_BYTES_S / 1e6:.0f} MB/s, links of {_LINK_BYTES_S / 1e6:.0f} MB/s, caches of {_HELD:.0%} in all",
            f"16 x 8 GPUs, simulated: {shards * SHARD_BYTES / 1e9:.0f} GB in {shards} shards, or {images} images that "
            f"are an object each; 1,100 images of 110 kB a GPU and second, a bucket of {_SIMULATED_BUCKET}, links of "
            "25 Gbit/s, caches of 120% in all",
        ],
    )


def compared(used: dict[str, Used], notes: list[str]) -> Table:
    """`used`: by the place where it was measured."""
    here: dict[str, Cells] = {way: {} for way in _WAYS.values()}
    for place, ways in used.items():
        for way, epochs in ways.items():
            here[way][f"{place}, {_FIRST}"] = Figure(epochs[0])
            here[way][f"{place}, {_LATER}"] = Figure(mean(epochs[1:]))
    lines = [Line(way, PAPER.get(way, {}), here.get(way, {})) for way in (DIRECT, *PAPER, ALONE, ONE)]
    return Table("tdcs", "TDCS: many GPUs, one cache", "GPU utilisation", "{:.1f} %", "times", lines, notes)


def simulated(rows: list[dict[str, Any]]) -> Used:
    """`rows`: those of `outrider simulate --nodes --json`."""
    return {_WAYS[way]: [100 * row["gpu"] for row in rows if row["way"] == way] for way in _WAYS}


def _live(directory: Path, data: Data, progress: Callable[[str], None]) -> Used:
    """All ranks wait for one another at the end of an epoch, as in a job whose GPUs exchange gradients."""
    size = data.cache_bytes(_HELD, _NODES, BLOCK)

    def used(report: EpochReport) -> float:
        bucket_share = report.bucket_bytes / data.total_bytes
        progress(f"an epoch of {report.took_s:.1f} s, {bucket_share:.2f} x data from the bucket")
        return 100 * data.total_bytes / _TAKEN_BYTES_S / checked(report).took_s

    found: Used = {}
    for way, together in ((ONE, True), (ALONE, False)):
        place = directory / str(together)
        place.mkdir()
        with on_a_switch(
            place, data, _NODES, size, _LINK_BYTES_S, total_bytes_s=_BUCKET_BYTES_S, together=together
        ) as (simulator, nodes):

            def epoch(number: int, places: list[Place]) -> float:
                return used(
                    run_epoch(
                        simulator, data, places, data.dealt(number, _NODES), pace_bytes_s=_TAKEN_BYTES_S / _NODES,
                        inside=[node.inside for node in nodes.all],
                    )
                )  # fmt: skip

            if together:
                straight: list[Place] = [Direct(nodes.bucket, simulator.endpoint, data)] * _NODES
                found[DIRECT] = [epoch(number, straight) for number in _EPOCHS[:2]]
            endpoints: list[Place] = [node.endpoint for node in nodes.all]
            found[way] = [epoch(number, endpoints) for number in _EPOCHS]
    return found
