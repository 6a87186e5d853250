"""Train from one object per sample, in a random order that is announced to the proxy (AnnouncingSampler, StallMeter).

    python examples/map_style_announcing.py --samples s3://bucket/prefix/ --epochs 2 --workers 4

Set AWS_ENDPOINT_URL to Outrider. Without it, the same program reads from the bucket. A sleep of --step-ms a batch
emulates the accelerator.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from outrider_sdk import StallMeter
from outrider_sdk.torch import AnnouncingSampler


@functools.cache
def s3_client() -> Any:
    """One client per worker process, which keeps its connections from sample to sample."""
    return boto3.client("s3")


class Samples(Dataset[int]):  # type: ignore[misc]
    """All objects below a prefix. A sample is the CRC-32 of its object; in a real job it would be an image."""

    def __init__(self, url: str) -> None:
        self.bucket = urlsplit(url).netloc
        pages = boto3.client("s3").get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=urlsplit(url).path.lstrip("/")
        )  # fmt: skip
        self.keys = [each["Key"] for page in pages for each in page.get("Contents", ())]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> int:
        body = s3_client().get_object(Bucket=self.bucket, Key=self.keys[index])["Body"].read()
        return zlib.crc32(body)

    def url(self, index: int) -> str:
        return f"s3://{self.bucket}/{self.keys[index]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", required=True, help="s3://bucket/prefix/ of the objects, one a sample")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=100.0, help="time of the emulated accelerator for a batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, help="write the epochs' reports as JSON lines")
    chosen = parser.parse_args()

    torch.set_num_threads(1)
    samples = Samples(chosen.samples)
    order = RandomSampler(samples, generator=torch.Generator().manual_seed(chosen.seed))
    loader = DataLoader(
        samples,
        batch_size=chosen.batch,
        sampler=AnnouncingSampler(order, samples.url),
        num_workers=chosen.workers,
        persistent_workers=chosen.workers > 0,
    )
    batches = StallMeter(loader)
    for _ in range(chosen.epochs):
        digest = 0
        for batch in batches:
            digest = (digest + int(batch.sum())) % 2**32
            time.sleep(chosen.step_ms / 1e3)
        epoch = batches.epochs[-1]
        print(epoch, flush=True)
        if chosen.report:
            with chosen.report.open("a") as file:
                report = {"epoch": epoch.number, "steps": epoch.steps, "wait_s": epoch.wait_s, "digest": digest}
                file.write(json.dumps(report) + "\n")
    print(batches.verdict())


if __name__ == "__main__":
    main()
