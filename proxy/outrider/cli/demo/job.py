"""The training job of the demo, without a word about Outrider; its arguments are the numbers of objects and of epochs.

One thread reads the objects in an order that repeats, a few batches ahead of the loop. The loop sleeps for each batch,
as it would wait for an accelerator. A line of JSON for each epoch.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from outrider.cli.demo.bucket import NAME, client_of, key_of

BATCH_BYTES = 2**20
# One connection of the slow line brings two thirds of it.
ACCELERATOR_BYTES_S = 60e6
_BATCHES_AHEAD = 8


@dataclass(frozen=True, slots=True)
class DemoEpoch:
    """`wait_s` of `time_s`: the loop had no batch. `digest` is that of all bytes in the order of the reads."""

    wait_s: float
    time_s: float
    digest: str


def epoch(client: Any, objects: int) -> DemoEpoch:
    """Raises whatever error of the client ended a read."""
    batches: queue.Queue[bytes | Exception | None] = queue.Queue(_BATCHES_AHEAD)

    def load() -> None:
        try:
            for number in range(objects):
                body = client.get_object(Bucket=NAME, Key=key_of(number))["Body"]
                while batch := body.read(BATCH_BYTES):
                    batches.put(batch)
        except Exception as error:  # noqa: BLE001 - the loop raises it
            batches.put(error)
        batches.put(None)

    threading.Thread(target=load, name="loader", daemon=True).start()
    wait_s, digest, began = 0.0, hashlib.sha256(), time.perf_counter()
    while True:
        requested_at = time.perf_counter()
        batch = batches.get()
        wait_s += time.perf_counter() - requested_at
        if isinstance(batch, Exception):
            raise batch
        if batch is None:
            return DemoEpoch(wait_s, time.perf_counter() - began, digest.hexdigest())
        until = time.perf_counter() + len(batch) / ACCELERATOR_BYTES_S
        digest.update(batch)
        time.sleep(max(0.0, until - time.perf_counter()))


def main() -> None:
    objects, epochs = (int(word) for word in sys.argv[1:])
    client = client_of(dict(os.environ))
    for _ in range(epochs):
        print(json.dumps(asdict(epoch(client, objects))), flush=True)


if __name__ == "__main__":
    main()
