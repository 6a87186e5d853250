"""Train a small ResNet on images in tar shards. The losses are the same bit for bit, wherever the shards are read.

    python examples/train_resnet.py --make /tmp/shards
    python examples/train_resnet.py --shards '/tmp/shards/train-{000000..000003}.tar'
    aws s3 cp --recursive /tmp/shards s3://my-bucket/
    outrider run -- python examples/train_resnet.py --shards 's3://my-bucket/train-{000000..000003}.tar'

An s3:// URL is read by boto3, from where AWS_ENDPOINT_URL leads to. The images are made here: each class has its own
stripes under noise, so that there is something to learn. It runs on the CPU, and on CUDA where torch finds it.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import tarfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import torch
import webdataset as wds
from PIL import Image
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator

SIDE, CLASSES = 32, 8


class Residual(nn.Module):  # type: ignore[misc] # where torch is not installed it is Any
    """Two 3x3 convolutions beside a shortcut (K. He et al., Deep Residual Learning for Image Recognition, 2015)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(images) + self.shortcut(images))


def small_resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        Residual(16, 16, 1),
        Residual(16, 32, 2),
        Residual(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )


@functools.cache
def s3_client() -> Any:
    import boto3

    return boto3.client("s3")


def open_with_boto3(url: str, mode: str = "rb", bufsize: int = 8192) -> IO[bytes]:
    parts = urlsplit(url)
    body: IO[bytes] = s3_client().get_object(Bucket=parts.netloc, Key=parts.path.lstrip("/"))["Body"]
    return body


def decode(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
    with Image.open(io.BytesIO(sample["jpg"])) as image:
        pixels = torch.from_numpy(np.array(image.convert("RGB")))
    return pixels.permute(2, 0, 1).float() / 255 - 0.5, int(sample["cls"])


def batches(shards: str, batch: int, epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """One epoch, in an order that its number decides."""
    wds.gopen_schemes["s3"] = open_with_boto3
    dataset = wds.WebDataset(shards, shardshuffle=100, seed=epoch, nodesplitter=wds.split_by_node)
    shuffled: Any = dataset.shuffle(512, seed=epoch)
    for samples in shuffled.map(decode).batched(batch, collation_fn=list):
        images, labels = zip(*samples, strict=True)
        yield torch.stack(images), torch.tensor(labels)


def train(shards: str, epochs: int, batch: int) -> Iterator[list[float]]:
    """The losses of each epoch's steps. The same shards give the same losses, on the same kind of machine."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    # Sums of floats depend on how many threads share them.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    model = small_resnet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(epochs):
        losses = []
        for images, labels in batches(shards, batch, epoch):
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        yield losses


def make_shards(directory: Path, shards: int, samples: int) -> None:
    """Images of `CLASSES` classes, whose stripes have a direction and a width of their own."""
    directory.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    across, down = np.meshgrid(np.arange(SIDE), np.arange(SIDE))
    for number in range(shards):
        with tarfile.open(directory / f"train-{number:06}.tar", "w") as tar:
            for sample in range(samples):
                label = int(chance.integers(CLASSES))
                turn = np.pi * label / CLASSES
                stripes = np.sin((across * np.cos(turn) + down * np.sin(turn)) * (0.5 + label / CLASSES))
                noise = chance.normal(0, 40, (SIDE, SIDE, 3))
                pixels = np.clip(128 + 60 * stripes[:, :, None] + noise, 0, 255).astype(np.uint8)
                jpeg = io.BytesIO()
                Image.fromarray(pixels).save(jpeg, "JPEG", quality=90)
                for name, body in (("jpg", jpeg.getvalue()), ("cls", b"%d" % label)):
                    member = tarfile.TarInfo(f"{number:03}-{sample:06}.{name}")
                    member.size = len(body)
                    tar.addfile(member, io.BytesIO(body))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--make", type=Path, metavar="DIR", help="write shards of images there")
    what.add_argument("--shards", help="s3://bucket/train-{000000..000003}.tar, or paths like that")
    parser.add_argument("--count", type=int, default=4, help="shards to make")
    parser.add_argument("--samples", type=int, default=256, help="images in each of them")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--report", type=Path, help="write each epoch's losses there, as lines of JSON")
    chosen = parser.parse_args()

    if chosen.make is not None:
        make_shards(chosen.make, chosen.count, chosen.samples)
        return
    began = time.perf_counter()
    for epoch, losses in enumerate(train(chosen.shards, chosen.epochs, chosen.batch), 1):
        mean = sum(losses) / len(losses)
        print(f"epoch {epoch}: loss {mean:.4f}, {time.perf_counter() - began:.1f} s", flush=True)
        if chosen.report is not None:
            with chosen.report.open("a") as file:
                # In hexadecimal a float is exact.
                file.write(json.dumps([loss.hex() for loss in losses]) + "\n")


if __name__ == "__main__":
    main()
