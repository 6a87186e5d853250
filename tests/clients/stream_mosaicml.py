"""A program that writes and reads datasets as mosaicml-streaming's users do; `test_streaming.py` runs it."""

from __future__ import annotations

import hashlib
import os
import sys

from tests.clients.mosaicml import MDSWriter, StreamingDataset
from tests.clients.streamed import SAMPLE_BYTES, SAMPLES, sample


def write(url: str) -> None:
    columns = {"number": "int", "body": "bytes"}
    with MDSWriter(out=url, columns=columns, hashes=["sha256"], size_limit=8 * SAMPLE_BYTES) as out:
        for number in range(SAMPLES):
            out.write({"number": number, "body": sample(number)})


def read(url: str, turn: int) -> None:
    cache = os.path.join(os.getcwd(), f"cache-{turn}")
    dataset = StreamingDataset(remote=url, local=cache, shuffle=False, batch_size=1, validate_hash="sha256")
    for each in dataset:
        print(each["number"], hashlib.sha256(each["body"]).hexdigest())


if __name__ == "__main__":
    for turn, (act, url) in enumerate(zip(sys.argv[1::2], sys.argv[2::2], strict=True)):
        if act == "write":
            write(url)
        else:
            read(url, turn)
