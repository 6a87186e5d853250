"""A job that trains on single images, for `tests.bench.papers`: a real DataLoader, and sleeps for the GPUs.

Each image is read and compared with its CRC-32; nothing is decoded. Its rate begins once each worker's first batch has
been taken: an epoch of these is short, and the workers' first batches are a large part of it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Sampler

from tests.bench.ahead_job import Samples


class Images(Samples):
    """`crcs`: of the image at each URL."""

    def __init__(self, urls: list[str], crcs: list[int]) -> None:
        super().__init__(urls)
        self._crcs = crcs

    def __getitem__(self, index: int) -> int:
        crc = super().__getitem__(index)
        if crc != self._crcs[index]:
            raise OSError(f"{self.urls[index]}: other bytes than were written")
        return crc


class Shuffled(Sampler[int]):  # type: ignore[misc]
    """The first `count` images in a new order each epoch."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epoch = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        order: list[int] = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        return iter(order)


def images_s(loader: DataLoader, batch: int, filling: int, gpus: int, gpu_images_s: float) -> float:
    """The images a second of an epoch, after its first `filling` batches."""
    step_s = batch / (gpus * gpu_images_s)
    taken, began = 0, time.perf_counter()
    for number, _ in enumerate(loader, 1):
        time.sleep(step_s)
        if number == filling:
            taken, began = 0, time.perf_counter()
        else:
            taken += batch
    return taken / (time.perf_counter() - began)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.papers_job", description=__doc__)
    parser.add_argument("--images", type=Path, required=True, help="a file with a URL and a CRC-32 in each line")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True, help="of an epoch")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--gpus", type=int, nargs="+", required=True, help="of each epoch")
    parser.add_argument("--gpu-images-s", type=float, required=True, help="images that a GPU takes in a second")
    parser.add_argument("--report", type=Path, required=True, help="gets a line of JSON for each epoch")
    chosen = parser.parse_args(argv)
    torch.set_num_threads(1)
    lines = [line.split() for line in chosen.images.read_text().splitlines()]
    images = Images([url for url, _ in lines], [int(crc) for _, crc in lines])
    loader = DataLoader(
        images, batch_size=chosen.batch, sampler=Shuffled(chosen.batch * chosen.batches), num_workers=chosen.workers,
        persistent_workers=True,
    )  # fmt: skip
    with chosen.report.open("a", buffering=1) as report:
        for gpus in chosen.gpus:
            rate = images_s(loader, chosen.batch, chosen.workers, gpus, chosen.gpu_images_s)
            report.write(json.dumps({"gpus": gpus, "images_s": rate}) + "\n")


if __name__ == "__main__":
    main()
