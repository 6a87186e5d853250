"""A process that writes and reads datasets as litdata's users do; see `test_streaming.py`."""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

import litdata

from tests.clients.streamed import SAMPLE_BYTES, SAMPLES, sample


def made(number: int) -> dict[str, Any]:
    return {"number": number, "body": sample(number)}


def options() -> dict[str, Any]:
    return {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}


def write(url: str) -> None:
    litdata.optimize(
        made, list(range(SAMPLES)), output_dir=url, chunk_bytes=8 * SAMPLE_BYTES, num_workers=1,
        storage_options=options(),
    )  # fmt: skip


def read(url: str, turn: int) -> None:
    cache = os.path.join(os.getcwd(), f"cache-{turn}")
    for each in litdata.StreamingDataset(url, cache_dir=cache, storage_options=options()):
        print(each["number"], hashlib.sha256(each["body"]).hexdigest())


# Its Rust client takes no plain http unless told so; it has no option for it.
os.environ["AWS_ALLOW_HTTP"] = "true"

if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2])
    else:
        for turn, url in enumerate(sys.argv[2:]):
            read(url, turn)
