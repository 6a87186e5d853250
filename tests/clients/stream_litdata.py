"""A program that writes and reads datasets as litdata's users do; `test_streaming.py` runs it."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import boto3
import litdata

from tests.clients.streamed import SAMPLE_BYTES, SAMPLES, sample


def made(number: int) -> dict[str, Any]:
    return {"number": number, "body": sample(number)}


ENDPOINT = os.environ["AWS_ENDPOINT_URL"]
# litdata's Rust client takes no plain http, and has no option for it. Over http, boto3 moves the files that litdata
# makes and reads.
PLAIN = ENDPOINT.startswith("http:")
OPTIONS = {"endpoint_url": ENDPOINT}


def write(url: str) -> None:
    to = str(Path("optimized").absolute()) if PLAIN else url
    options = {} if PLAIN else OPTIONS
    numbers = list(range(SAMPLES))
    # A worker that is spawned would import torch and litdata anew.
    litdata.optimize(
        made, numbers, output_dir=to, chunk_bytes=8 * SAMPLE_BYTES, num_workers=1, storage_options=options,
        start_method="fork",
    )  # fmt: skip
    if PLAIN:
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        client = boto3.client("s3")
        for path in Path(to).iterdir():
            client.upload_file(str(path), bucket, f"{prefix}/{path.name}")


def fetched(url: str, turn: int) -> str:
    into = Path(f"fetched-{turn}").absolute()
    into.mkdir()
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    client = boto3.client("s3")
    for entry in client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/")["Contents"]:
        client.download_file(bucket, entry["Key"], str(into / entry["Key"].rpartition("/")[2]))
    return str(into)


def read(url: str, turn: int) -> None:
    if PLAIN:
        dataset = litdata.StreamingDataset(fetched(url, turn))
    else:
        cache = str(Path(f"cache-{turn}").absolute())
        dataset = litdata.StreamingDataset(url, cache_dir=cache, storage_options=OPTIONS)
    for each in dataset:
        print(each["number"], hashlib.sha256(each["body"]).hexdigest())


if __name__ == "__main__":
    for turn, (act, url) in enumerate(zip(sys.argv[1::2], sys.argv[2::2], strict=True)):
        if act == "write":
            write(url)
        else:
            read(url, turn)
