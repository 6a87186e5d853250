"""The variables of libraries that do not read those of the AWS SDKs, or need one more: docs/frameworks.md."""

from __future__ import annotations

import os
import subprocess

import pytest

from outrider.cli.run.child_environment import for_child
from tests.frameworks.catalogue import PAGE
from tests.support.pages import blocks_of


def child(environ: dict[str, str] | None = None, endpoint: str = "http://127.0.0.1:9480") -> dict[str, str]:
    return for_child(environ or {}, endpoint=endpoint, admin="http://127.0.0.1:9481", region="eu-1", needs_keys=False)


@pytest.mark.parametrize(("endpoint", "tls"), [("http://127.0.0.1:9480", "false"), ("https://cache:9480", "true")])
def test_duckdb_gets_the_address_without_its_scheme(endpoint: str, tls: str) -> None:
    made = child(endpoint=endpoint)
    assert (made["DUCKDB_S3_ENDPOINT"], made["DUCKDB_S3_USE_SSL"]) == (endpoint.partition("://")[2], tls)


def test_run_ai_addresses_buckets_by_path() -> None:
    assert child()["RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING"] == "0"


def test_tensorflow_gets_the_endpoint_with_its_scheme() -> None:
    assert child()["S3_ENDPOINT"] == "http://127.0.0.1:9480"


def test_rclone_gets_a_remote_of_its_own_and_keeps_the_users() -> None:
    theirs = {"RCLONE_CONFIG_STORE_ENDPOINT": "https://store", "RCLONE_S3_ENDPOINT": "https://other"}
    made = child(theirs)
    assert {name: value for name, value in made.items() if name.startswith("RCLONE_")} == {
        **theirs,
        "RCLONE_CONFIG_OUTRIDER_TYPE": "s3",
        "RCLONE_CONFIG_OUTRIDER_PROVIDER": "Other",
        "RCLONE_CONFIG_OUTRIDER_ENDPOINT": "http://127.0.0.1:9480",
        "RCLONE_CONFIG_OUTRIDER_ENV_AUTH": "true",
        "RCLONE_CONFIG_OUTRIDER_REGION": "eu-1",
    }


def test_the_page_exports_the_same_variables() -> None:
    """But for the services that stay where they were, and Outrider's own."""
    [block] = [block for block in blocks_of(PAGE) if block.text.startswith("export AWS_ENDPOINT_URL=")]
    shell = subprocess.run(
        ["bash", "-euc", f"{block.text}\nenv"], env={"PATH": os.environ["PATH"]}, check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    exported = dict(line.split("=", 1) for line in shell.stdout.splitlines())
    made = for_child({}, endpoint="http://127.0.0.1:9480", admin="http://a", region=None, needs_keys=False)
    beside = ("AWS_ENDPOINT_URL_S", "OUTRIDER_")
    for name in ("PATH", "PWD", "SHLVL", "_"):
        exported.pop(name, None)
    assert exported == {name: value for name, value in made.items() if not name.startswith(beside)}
