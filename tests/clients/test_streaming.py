"""The streaming datasets of litdata and mosaicml-streaming, written and read directly and through the proxy.

Each runs in a process of its own: both find S3 in their environment, and keep state as long as their process lives.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.clients.streamed import SAMPLE_BYTES, SAMPLES, lines
from tests.support.client_access import HAS_TORCH, Access, require, run
from tests.support.forkserver import Server
from tests.support.proxy import Keys, Proxy, serving_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket
    from tests.support.tls import Certificate

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
# Up to ten lists, HEADs and indexes beside the samples.
BESIDE_BYTES = 100_000
ROOT = Path(__file__).parents[2]


def streamed(server: Server, kind: str, access: Access, *acts: str) -> list[str]:
    """The lines that a process of this kind prints of the samples that it read. `acts` are pairs of "write" or "read"
    and a URL."""
    access.scratch.mkdir()
    argv = (sys.executable, "-m", f"tests.clients.stream_{kind}", *acts)
    said = run(access, *argv, server=server).decode().splitlines()
    return [line for line in said if line.partition(" ")[0].isdecimal()]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Most of a process's time goes into imports, of torch above all."""
    require(["litdata", "streaming"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        with Server("boto3", "litdata", "tests.clients.mosaicml") as running:
            yield running


# litdata's Rust client takes no http.
@pytest.mark.parametrize(("kind", "tls"), [("litdata", True), ("mosaicml", False)])
def test_a_dataset_is_the_same_whichever_side_wrote_it_and_is_filled_once(
    kind: str, tls: bool, server: Server, bucket: Bucket, certificate: Certificate, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    bucket.make_bucket(NAME)
    clients = tmp_path / "clients.toml"
    clients.write_text(CLIENTS_FILE)
    monkeypatch.setenv("PYTHONPATH", f"{serving_environment(bucket)['PYTHONPATH']}:{ROOT}")
    # litdata works in these directories and empties them. Without these variables, all users would share one.
    for name in ("DATA_OPTIMIZER_CACHE_FOLDER", "DATA_OPTIMIZER_DATA_CACHE_FOLDER", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))

    def direct(name: str) -> Access:
        return Access(bucket.endpoint, (bucket.access_key, bucket.secret_key), tmp_path / name)

    def through(name: str) -> Access:
        return Access(proxy.endpoint, KEYS, tmp_path / name, certificate.authority if tls else None)

    theirs, ours = f"s3://{NAME}/{kind}/direct", f"s3://{NAME}/{kind}/through"
    flags: dict[str, Any] = {"tls_cert": certificate.chain, "tls_key": certificate.key} if tls else {}
    with Proxy(bucket, auth="sigv4", clients=clients, **flags) as proxy:
        streamed(server, kind, through("through-writer"), "write", ours)
        assert streamed(server, kind, direct("direct"), "write", theirs, "read", ours) == lines()
        proxy.settle()
        began = proxy.metric("outrider_origin_bytes_total")
        # Cold, then warm: the second read has a local directory of its own.
        assert streamed(server, kind, through("through-reader"), "read", theirs, "read", theirs) == 2 * lines()
        proxy.settle()
        sent = proxy.metric("outrider_origin_bytes_total") - began
        assert SAMPLES * SAMPLE_BYTES <= sent <= SAMPLES * SAMPLE_BYTES + BESIDE_BYTES
