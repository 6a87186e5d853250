"""The streaming datasets of litdata and mosaicml-streaming: written and read directly and through the proxy.

Each runs in a process of its own: both find S3 in their environment, and keep state for as long as they live.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.clients.streamed import SAMPLE_BYTES, SAMPLES, lines
from tests.support.door import HAS_TORCH, Door, require, run
from tests.support.proxy import ANY_KEYS, Keys, Proxy, serving_environment

if TYPE_CHECKING:
    from tests.support.bucket import Bucket

pytestmark = pytest.mark.skipif(not HAS_TORCH, reason="the pinned torch has no wheel for this Python")

NAME = "clients-streaming"
KEYS: Keys = ("STREAMINGKEY", "streaming-secret")
CLIENTS_FILE = f"""
[[client]]
name = "streaming"
access_key = "{KEYS[0]}"
secret_key = "{KEYS[1]}"
grants = [{{bucket = "{NAME}", access = "write"}}]
"""
# Ten lists, HEADs and indexes beside the samples.
BESIDE_BYTES = 100_000
ROOT = Path(__file__).parents[2]


def streamed(kind: str, door: Door, act: str, *urls: str) -> list[str]:
    """What a process of this kind prints of the samples that it read."""
    door.scratch.mkdir()
    said = run(door, sys.executable, "-m", f"tests.clients.stream_{kind}", act, *urls).decode().splitlines()
    return [line for line in said if line.partition(" ")[0].isdecimal()]


@pytest.mark.parametrize("kind", ["litdata", "mosaicml"])
def test_a_dataset_is_the_same_whoever_wrote_it_and_is_filled_once(
    kind: str, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(["litdata" if kind == "litdata" else "streaming"])
    bucket.make_bucket(NAME)
    clients = tmp_path / "clients.toml"
    clients.write_text(CLIENTS_FILE)
    monkeypatch.setenv("PYTHONPATH", f"{serving_environment(bucket)['PYTHONPATH']}:{ROOT}")
    monkeypatch.setenv("HOME", str(tmp_path))
    own: Keys = (bucket.access_key, bucket.secret_key)

    theirs = f"s3://{NAME}/{kind}/direct"
    assert streamed(kind, Door(bucket.endpoint, own, tmp_path / "writer"), "write", theirs) == []
    with Proxy(bucket) as loopback, Proxy(bucket, auth="sigv4", clients=clients) as sigv4:
        ours = []
        for mode, proxy, keys in (("loopback", loopback, ANY_KEYS), ("sigv4", sigv4, KEYS)):
            ours.append(f"s3://{NAME}/{kind}/{mode}")
            streamed(kind, Door(proxy.endpoint, keys, tmp_path / f"{mode}-writer"), "write", ours[-1])
            # Cold, then warm: the second read has a local directory of its own.
            door = Door(proxy.endpoint, keys, tmp_path / f"{mode}-reader")
            proxy.settle()
            began = proxy.metric("outrider_origin_bytes_total")
            assert streamed(kind, door, "read", theirs, theirs) == 2 * lines()
            proxy.settle()
            sent = proxy.metric("outrider_origin_bytes_total") - began
            assert SAMPLES * SAMPLE_BYTES <= sent <= SAMPLES * SAMPLE_BYTES + BESIDE_BYTES
    assert streamed(kind, Door(bucket.endpoint, own, tmp_path / "reader"), "read", *ours) == 2 * lines()
