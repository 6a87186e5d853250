"""A training job for `tests.bench.ahead`: real loaders and sleeps for the accelerator; prints each epoch's data wait.

Samples are read, unpacked and summed, and no more: this measures the data path, on any machine.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import zlib
from collections.abc import Iterable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
import webdataset as wds
from torch.utils.data import DataLoader, Dataset, RandomSampler

from outrider_sdk.torch import AnnouncingSampler
from outrider_sdk.webdataset import announced

SHUFFLE = 10_000


def summed(sample: dict[str, Any]) -> int:
    return zlib.crc32(sample["bin"])


def shard_loader(urls: list[str], chosen: argparse.Namespace) -> Iterable[Any]:
    """`repeated` is WebDataset's default: the same order in each epoch."""
    # The form of users who have neither aws nor s5cmd; it takes the least CPU to start.
    pipes = [f"pipe:curl -s -S -f '{url}'" for url in urls]
    dataset = wds.WebDataset(
        pipes,
        shardshuffle=SHUFFLE,
        detshuffle=chosen.order == "fresh",
        seed=chosen.seed,
        nodesplitter=wds.split_by_node,
    )
    if chosen.announce:
        dataset = announced(dataset)
    dataset = dataset.map(summed).batched(chosen.batch, collation_fn=torch.tensor)
    loader: Iterable[Any] = wds.WebLoader(
        dataset, batch_size=None, num_workers=chosen.workers, persistent_workers=chosen.workers > 0,
        prefetch_factor=chosen.loaded_ahead if chosen.workers else None,
    )  # fmt: skip
    return loader


class Samples(Dataset[int]):  # type: ignore[misc]
    """One object a sample, each read by a GET that is waited for."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self._connection: HTTPConnection | None = None

    def __len__(self) -> int:
        return len(self.urls)

    def __getitem__(self, index: int) -> int:
        url = urlsplit(self.urls[index])
        if url.scheme == "file":
            return zlib.crc32(Path(url.path).read_bytes())
        if self._connection is None:
            assert url.hostname is not None
            self._connection = HTTPConnection(url.hostname, url.port)
        self._connection.request("GET", url._replace(scheme="", netloc="").geturl())
        with self._connection.getresponse() as answer:
            body = answer.read()
        if answer.status != 200:
            raise OSError(f"{answer.status}: {body[:500]!r}")
        return zlib.crc32(body)


def sample_loader(urls: list[str], chosen: argparse.Namespace) -> Iterable[Any]:
    samples = Samples(urls)
    sampler: Any = RandomSampler(samples, generator=torch.Generator().manual_seed(chosen.seed))
    if chosen.announce:
        sampler = AnnouncingSampler(sampler, urls.__getitem__)
    loader: Iterable[Any] = DataLoader(samples, batch_size=chosen.batch, sampler=sampler, num_workers=0)
    return loader


def connector_loader(urls: list[str], chosen: argparse.Namespace) -> Iterable[Any]:
    """Whole objects in the order of their names, by s3torchconnector. `urls`: a prefix at a bucket, or local files."""
    samples: Dataset[int] = Samples(urls)
    if urls[0].startswith("s3:"):
        # Imported here: it has no wheel for newer Pythons, and other loaders do not need it.
        from s3torchconnector import S3ClientConfig, S3MapDataset

        samples = S3MapDataset.from_prefix(
            urls[0], region="us-east-1", endpoint=os.environ["AWS_ENDPOINT_URL"], transform=read_and_summed,
            s3client_config=S3ClientConfig(force_path_style=True),
        )  # fmt: skip
    loader: Iterable[Any] = DataLoader(
        samples, batch_size=chosen.batch, num_workers=chosen.workers, persistent_workers=chosen.workers > 0,
        prefetch_factor=chosen.loaded_ahead if chosen.workers else None,
    )  # fmt: skip
    return loader


def read_and_summed(reader: Any) -> int:
    return zlib.crc32(reader.read())


LOADERS = {"shards": shard_loader, "samples": sample_loader, "connector": connector_loader}


def epoch(loader: Iterable[Any], step_s: float) -> dict[str, Any]:
    """`wait_s` is all the time that the training loop was blocked for data, from its very first batch on."""
    samples = digest = 0
    wait_s = first_s = 0.0
    began = asked = time.perf_counter()
    for batch in loader:
        waited = time.perf_counter() - asked
        wait_s += waited
        first_s = first_s or waited
        samples += len(batch)
        digest = (digest + int(batch.sum())) % 2**32
        time.sleep(step_s * len(batch))
        asked = time.perf_counter()
    wait_s += time.perf_counter() - asked
    took_s = time.perf_counter() - began
    return {"samples": samples, "digest": digest, "wait_s": wait_s, "first_s": first_s, "took_s": took_s}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ahead_job", description=__doc__)
    parser.add_argument("--kind", choices=list(LOADERS), required=True)
    parser.add_argument("--urls", type=Path, required=True, help="a file of URLs")
    parser.add_argument("--order", choices=["repeated", "fresh"], default="repeated")
    parser.add_argument("--announce", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--loaded-ahead", type=int, default=2, help="batches that each worker loads ahead")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument(
        "--step-us", type=float, required=True, help="microseconds of the emulated accelerator for each sample"
    )
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, required=True)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    urls = chosen.urls.read_text().split()
    loader = LOADERS[chosen.kind](urls, chosen)
    with chosen.report.open("a", buffering=1) as report:
        for _ in range(chosen.epochs):
            report.write(json.dumps(epoch(loader, chosen.step_us / 1e6)) + "\n")


if __name__ == "__main__":
    main()
