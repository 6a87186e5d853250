"""The demo's dataset: JPEG images as large and as costly to decode as a camera's, in WebDataset shards."""

from __future__ import annotations

import functools
import hashlib
import io
import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import webdataset as wds
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

CLASSES = 1000
WIDTH, HEIGHT = 512, 384
# With the texture's grain, about 120 KB an image; ImageNet's are 110 KB at 500 x 375.
QUALITY = 97
TEXTURE_SIDE = 1024
SEED = 7


@dataclass(frozen=True, slots=True)
class Shard:
    """One written shard. `digest` sums the SHA-256 of each sample's key and JPEG, as the training example does."""

    path: Path
    size_bytes: int
    samples: int
    digest: int


@functools.cache
def texture() -> NDArray[np.uint8]:
    """One big picture from which images are cut: clouds in eight octaves with film grain on them."""
    chance = np.random.default_rng(SEED)
    picture = np.zeros((TEXTURE_SIDE, TEXTURE_SIDE, 3), np.float32)
    for octave in range(1, 9):
        coarse = chance.standard_normal((2**octave + 1, 2**octave + 1, 3)).astype(np.float32)
        for channel in range(3):
            layer = Image.fromarray(coarse[..., channel]).resize((TEXTURE_SIDE, TEXTURE_SIDE), Image.Resampling.BICUBIC)
            picture[..., channel] += np.asarray(layer) / octave**1.3
    picture += chance.standard_normal((TEXTURE_SIDE, TEXTURE_SIDE, 1)) * 0.2
    low, high = np.percentile(picture, [0.5, 99.5])
    scaled: NDArray[np.uint8] = ((picture - low) / (high - low) * 255).clip(0, 255).astype(np.uint8)
    return scaled


def jpeg(number: int) -> bytes:
    """The image of this number: a cut-out of the texture, with a brightness of its own."""
    chance = np.random.default_rng([SEED, number])
    top, left = chance.integers(0, [TEXTURE_SIDE - HEIGHT, TEXTURE_SIDE - WIDTH])
    cut = texture()[top : top + HEIGHT, left : left + WIDTH]
    brightness = np.linspace(chance.uniform(0.6, 1.0), chance.uniform(0.6, 1.0), 256)
    file = io.BytesIO()
    Image.fromarray((brightness[cut] * cut).astype(np.uint8)).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def write_shard(directory: Path, index: int, samples: int) -> Shard:
    digest = 0
    pattern = str(directory / "train-%06d.tar")
    # A whole-numbered time, always the same: the shards are then the same too, and need no extra header for fractions
    # of a second.
    with wds.ShardWriter(pattern, maxcount=samples, start_shard=index, verbose=0, mtime=0) as writer:
        for number in range(index * samples, (index + 1) * samples):
            key, image = f"{number:09d}", jpeg(number)
            writer.write({"__key__": key, "jpg": image, "cls": number % CLASSES})
            digest += int.from_bytes(hashlib.sha256(key.encode() + image).digest())
    path = directory / f"train-{index:06d}.tar"
    return Shard(path, path.stat().st_size, samples, digest % 2**256)


def _die_with_parent() -> None:
    """A pool's processes would wait for work for ever, even after their parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def write_shards(directory: Path, shards: int, samples_per_shard: int, processes: int) -> Iterator[Shard]:
    """Write `train-000000.tar` and so on; each shard is reported when it is whole. Their order in time is random, their
    bytes are not."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_die_with_parent) as pool:
        written = [pool.submit(write_shard, directory, index, samples_per_shard) for index in range(shards)]
        try:
            for future in as_completed(written):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)
