"""The variables of libraries that do not read those of the AWS SDKs, or need one more: docs/frameworks.md."""

from __future__ import annotations

import re

import pytest

from outrider.cli.run.child_environment import for_child
from tests.support.pages import ROOT


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


def test_the_page_names_each_variable_that_a_library_reads() -> None:
    told = (ROOT / "docs" / "frameworks.md").read_text()
    names = {re.sub(r"^RCLONE_CONFIG_OUTRIDER_.*", "RCLONE_CONFIG_OUTRIDER_", name) for name in child()}
    # Services that stay where they were, and Outrider's own.
    beside = {name for name in names if name.startswith(("AWS_ENDPOINT_URL_S", "OUTRIDER_"))}
    assert {name for name in names - beside if name not in told} == set()
