"""Modules that `outrider serve` must not import before it is ready: each costs megabytes and start-up time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bucket import Bucket
from tests.support.proxy import serving_environment

pytestmark = pytest.mark.lowest

# botocore's credential chain; aiohttp's applications; modules that only other commands need, and those that they draw
# and print with; the sources of members, which only a cluster has, and their libraries.
HEAVY = {
    "aiobotocore", "aiohttp.web", "aiohttp.web_app", "aiohttp.web_urldispatcher", "boto3", "botocore",
    "matplotlib", "numpy", "opentelemetry", "requests", "rich", "urllib3", "outrider.adapters.origin.traced_origin",
    "ClusterShell", "httpx2", "lightkube", "outrider.adapters.cluster.peer_key", "outrider.adapters.cluster.peer_tls",
    "outrider.adapters.cluster.sources", "yaml",
    "cryptography", "outrider.adapters.kubernetes", "outrider.core.operator", "outrider.engine.operator",
    "outrider.http.operator", "outrider.operator_composition", "outrider.operator_ports",
    "outrider.cli.demo", "outrider.cli.doctor", "outrider.cli.operator", "outrider.cli.run",
    "outrider.cli.simulate",
    "outrider.http.record.server_spans", "outrider.simulator",
}  # fmt: skip

# Prints, as its last line, the names of all modules imported by the time the proxy is ready and has looked for its
# credentials.
SERVE = """
import os, signal, sys
from outrider.adapters.origin.credentials import AwsCredentials
from outrider.cli import main

async def find_and_print(credentials):
    await find_early(credentials)
    print(*sys.modules)
    os.kill(os.getpid(), signal.SIGTERM)

find_early, AwsCredentials.find_early = AwsCredentials.find_early, find_and_print
sys.argv[0] = "outrider"
main()
"""


def test_with_keys_in_its_environment_a_proxy_imports_nothing_heavy(bucket: Bucket, tmp_path: Path) -> None:
    flags = ["--origin", bucket.endpoint, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    argv = [
        sys.executable,
        "-c",
        SERVE,
        "serve",
        *flags,
        "--cache-dir",
        str(tmp_path / "cache"),
        "--cache-size",
        "1GiB",
    ]
    environment = serving_environment(bucket) | {"AWS_CONFIG_FILE": "/dev/null"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.split())
    assert "aiohttp" in imported
    assert not imported & HEAVY
