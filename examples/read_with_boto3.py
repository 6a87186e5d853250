"""Read all objects below a prefix with boto3. Only AWS_ENDPOINT_URL leads to Outrider; the code does not know of it.

    outrider run -- python examples/read_with_boto3.py s3://bucket/prefix/
    AWS_ENDPOINT_URL=http://127.0.0.1:9480 python examples/read_with_boto3.py s3://bucket/prefix/

The first command starts a proxy for this one command. The second one uses a proxy that already runs (`outrider serve`,
or a pod's sidecar). `--epochs 2` reads everything twice.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections import Counter
from urllib.parse import urlsplit

import boto3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="s3://bucket/prefix/ of the objects")
    parser.add_argument("--epochs", type=int, default=1)
    chosen = parser.parse_args()

    s3 = boto3.client("s3")
    bucket, prefix = urlsplit(chosen.url).netloc, urlsplit(chosen.url).path.lstrip("/")
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    keys = [each["Key"] for page in pages for each in page.get("Contents", ())]
    for epoch in range(1, chosen.epochs + 1):
        digest, size, ways = hashlib.sha256(), 0, Counter[str]()
        started = time.perf_counter()
        for key in keys:
            reply = s3.get_object(Bucket=bucket, Key=key)
            body = reply["Body"].read()
            digest.update(body)
            size += len(body)
            # Each reply of Outrider has `x-cache`; a reply of the bucket does not.
            ways[reply["ResponseMetadata"]["HTTPHeaders"].get("x-cache", "no cache")] += 1
        rate = size / (time.perf_counter() - started) / 1e6
        seen = ", ".join(f"{count} {way}" for way, count in sorted(ways.items()))
        print(f"epoch {epoch}: {len(keys)} objects, {size} bytes, {rate:.0f} MB/s ({seen}) {digest.hexdigest()}")


if __name__ == "__main__":
    main()
