"""Train from tar shards in a bucket with WebDataset. AWS_ENDPOINT_URL alone leads to Outrider.

    python examples/train_webdataset.py --shards 's3://bucket/train-{000000..000023}.tar' --epochs 2

A sleep of --step-ms a batch emulates the accelerator, so that the wait of the training loop for data is measured
without a GPU. Each sample is a `.jpg` and a `.cls`.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import io
import json
import os
import shlex
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import torch
import webdataset as wds
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterable

IMAGE_SIDE = 48


@dataclass(frozen=True, slots=True)
class Batch:
    """`digest` sums the SHA-256 (as numbers, modulo 2^256) of each sample's key and JPEG bytes."""

    images: torch.Tensor
    labels: torch.Tensor
    digest: int


@dataclass(frozen=True, slots=True)
class EpochReport:
    """Times of one epoch.

    The wait for the first batch is kept apart (`first_batch_s`) in every epoch of every run. In the first epoch it is
    mostly the start of the workers, which does not depend on the place of the shards. `data_wait_s` is the time after
    the first batch for which the loop was blocked for a batch. `samples_per_s` also counts from the first batch on.
    `digest` does not depend on the order of the samples: equal digests mean the same samples, bit for bit.
    """

    epoch: int
    samples: int
    first_batch_s: float
    data_wait_s: float
    train_s: float
    samples_per_s: float
    digest: str


def shard_urls(opener: str, shards: str) -> str | list[str]:
    """URLs for WebDataset, from shards given as an `s3://` template (curl: a file of URLs; local: a path template)."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if opener == "s5cmd":
        # s5cmd does not read AWS_ENDPOINT_URL, unlike the SDKs and the aws CLI.
        option = f"--endpoint-url {shlex.quote(endpoint)} " if endpoint else ""
        return f"pipe:s5cmd {option}cat {shards}"
    if opener == "aws":
        return f"pipe:aws s3 cp --only-show-errors {shards} -"
    if opener == "curl":
        return [f"pipe:curl --silent --show-error --fail {shlex.quote(u)}" for u in Path(shards).read_text().split()]
    if opener == "boto3":
        wds.gopen_schemes["s3"] = open_with_boto3
    return shards


@functools.cache
def s3_client() -> Any:
    """One client per worker process, which keeps its connections from shard to shard."""
    import boto3

    return boto3.client("s3")


def open_with_boto3(url: str, mode: str = "rb", bufsize: int = 8192) -> IO[bytes]:
    parts = urlsplit(url)
    body: IO[bytes] = s3_client().get_object(Bucket=parts.netloc, Key=parts.path.lstrip("/"))["Body"]
    return body


def decode(sample: dict[str, Any]) -> tuple[torch.Tensor, int, int]:
    jpeg = sample["jpg"]
    digest = hashlib.sha256(sample["__key__"].encode() + jpeg).digest()
    with Image.open(io.BytesIO(jpeg)) as image:
        # The decoder itself scales down to the smallest size that is large enough. A resize afterwards costs far more.
        image.draft("RGB", (IMAGE_SIDE, IMAGE_SIDE))
        small = image.convert("RGB").resize((IMAGE_SIDE, IMAGE_SIDE))
    pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1)
    return pixels, int(sample["cls"]), int.from_bytes(digest)


def collate(samples: list[tuple[torch.Tensor, int, int]]) -> Batch:
    images, labels, digests = zip(*samples, strict=True)
    return Batch(torch.stack(images), torch.tensor(labels), sum(digests) % 2**256)


def make_loader(urls: str | list[str], workers: int, batch: int) -> Iterable[Batch]:
    dataset = (
        wds.WebDataset(urls, shardshuffle=1000, nodesplitter=wds.split_by_node)
        .shuffle(256)
        .map(decode)
        .batched(batch, collation_fn=collate)
    )
    # The workers are persistent, so that only the first epoch pays for their start.
    loader: Iterable[Batch] = wds.WebLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
    )
    return loader


def train_step(batch: Batch, step_s: float) -> None:
    """A sleep in place of the forward and backward pass."""
    assert len(batch.images) == len(batch.labels)
    time.sleep(step_s)


def run_epoch(loader: Iterable[Batch], epoch: int, step_s: float) -> EpochReport:
    samples = digest = 0
    data_wait_s = 0.0
    requested_at = time.perf_counter()
    batches = iter(loader)
    batch = next(batches, None)
    started_at = time.perf_counter()
    first_batch_s = started_at - requested_at
    while batch is not None:
        samples += len(batch.labels)
        digest = (digest + batch.digest) % 2**256
        train_step(batch, step_s)
        requested_at = time.perf_counter()
        batch = next(batches, None)
        data_wait_s += time.perf_counter() - requested_at
    train_s = time.perf_counter() - started_at
    return EpochReport(
        epoch, samples, first_batch_s, data_wait_s, train_s, samples / train_s if train_s else 0.0, f"{digest:064x}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opener", choices=["s5cmd", "aws", "boto3", "curl", "local"], default="s5cmd")
    parser.add_argument("--shards", required=True, help="s3://bucket/train-{000000..000023}.tar; curl: a file of URLs")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=100.0, help="time of the emulated accelerator for a batch")
    parser.add_argument("--report", type=Path, help="write the epochs' reports as JSON lines, each when it is over")
    chosen = parser.parse_args()

    torch.set_num_threads(1)
    loader = make_loader(shard_urls(chosen.opener, chosen.shards), chosen.workers, chosen.batch)
    for epoch in range(1, chosen.epochs + 1):
        report = run_epoch(loader, epoch, chosen.step_ms / 1e3)
        print(
            f"epoch {epoch}: {report.samples} samples, {report.samples_per_s:.0f} samples/s, "
            f"waited {report.data_wait_s:.2f} s for data",
            flush=True,
        )
        if chosen.report:
            with chosen.report.open("a") as file:
                file.write(json.dumps(asdict(report)) + "\n")


if __name__ == "__main__":
    main()
