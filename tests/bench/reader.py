"""A boto3 reader like a data loader's worker: `python -m tests.bench.reader ENDPOINT BUCKET PROBE KEY...`.

Reads PROBE first, since the first request of a process is mostly the start of boto3. Then it prints `ready`, waits for
a line, reads each object whole by one GET, and prints the number of bytes.
"""

from __future__ import annotations

import sys

import boto3
from botocore.config import Config

_PIECE_BYTES = 1024 * 1024


def main() -> None:
    endpoint, bucket, probe, *keys = sys.argv[1:]
    client = boto3.client("s3", endpoint_url=endpoint, config=Config(s3={"addressing_style": "path"}))
    client.get_object(Bucket=bucket, Key=probe)["Body"].read()
    print("ready", flush=True)
    sys.stdin.readline()
    total = 0
    for key in keys:
        body = client.get_object(Bucket=bucket, Key=key)["Body"]
        total += sum(len(piece) for piece in body.iter_chunks(_PIECE_BYTES))
    print(total, flush=True)


if __name__ == "__main__":
    main()
