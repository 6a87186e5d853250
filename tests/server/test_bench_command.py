"""The command `outrider bench` against a real bucket."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.child import free_ports
from tests.support.proxy import Command

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bucket import Bucket

NAME = "benched"


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.store(NAME, {f"train/{number}": bytes(200_000) for number in range(4)})


@pytest.fixture
def command(bucket: Bucket, tmp_path: Path) -> Command:
    made = Command(bucket, tmp_path)
    made.environ["AWS_ENDPOINT_URL"] = bucket.endpoint
    return made


def test_the_command_reads_a_bucket_direct_cold_and_warm(command: Command) -> None:
    done = command.run("bench", f"s3://{NAME}/train/", "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert [row["way"] for row in measured] == ["direct", "cold", "warm"]
    assert all(row["megabytes_per_s"] > 0 for row in measured)
    assert measured[0]["from_cache"] == 0
    assert measured[2]["from_cache"] >= 0.5
    assert "could not keep" not in done.stderr


def test_the_command_finds_the_bucket_as_serve_does_and_ignores_a_running_proxy(
    command: Command, bucket: Bucket, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    listen = f"127.0.0.1:{port}"
    command.environ.update({"OUTRIDER_LISTEN": listen, "AWS_ENDPOINT_URL": f"http://{listen}"})
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text(f"[default]\nendpoint_url = {bucket.endpoint}\n")
    done = command.run("bench", f"s3://{NAME}/train/", "--rounds", "1", "--objects", "2")
    assert done.returncode == 0, done.stderr


def test_the_command_prints_its_progress_and_results_for_people(command: Command) -> None:
    done = command.run("bench", f"s3://{NAME}/train/", "--rounds", "1", "--objects", "2")
    assert "2 objects, 0.4 MB" in done.stderr
    assert "of direct" in done.stdout


def test_a_question_mark_is_a_letter_of_a_key(command: Command, bucket: Bucket) -> None:
    bucket.store(NAME, {key: bytes(1000) for key in ("odd?1/0", "oddly/0")})
    done = command.run("bench", f"s3://{NAME}/odd?1/", "--rounds", "1")
    assert "1 objects, 0.0 MB" in done.stderr


def test_a_disk_without_room_for_the_cache_is_reported(command: Command) -> None:
    command.environ["OUTRIDER_MIN_FREE"] = "1000TiB"
    done = command.run("bench", f"s3://{NAME}/train/", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    assert "the cache had no room for the objects" in done.stderr


@pytest.mark.parametrize("url", ["no-url", f"s3://{NAME}/nothing-there/", "s3://no-such-bucket-of-ours/"])
def test_objects_that_cannot_be_read_are_reported(command: Command, url: str) -> None:
    done = command.run("bench", url, "--rounds", "1")
    assert done.returncode == 1
    assert url in done.stderr
    assert "Traceback" not in done.stderr
