"""Mistakes at a start: each ends it, or is reported at once, with a line that says what to do."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from outrider.adapters.origin.credentials import AwsCredentials
from outrider.cli.run.own_proxy import report_if_unreachable
from tests.support.child import clean_environment, free_ports, scratch_directory
from tests.support.pages import ROOT
from tests.support.proxy import DEADLINE_S, Command, Process, python

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bucket import Bucket


@pytest.fixture
def command(bucket: Bucket, tmp_path: Path) -> Command:
    made = Command(bucket, tmp_path)
    made.environ |= {
        "OUTRIDER_ORIGIN": bucket.endpoint,
        "OUTRIDER_LISTEN": "127.0.0.1:0",
        "OUTRIDER_ADMIN": "127.0.0.1:0",
    }
    return made


def test_a_port_in_use_is_reported_with_the_flag_to_change(command: Command, tmp_path: Path) -> None:
    (tmp_path / "peers").write_text("127.0.0.1:1\n")
    (tmp_path / "key").write_text("k" * 32)
    (tmp_path / "key").chmod(0o600)
    members = ("--peers", f"file:{tmp_path}/peers", "--peer-key-file", tmp_path / "key")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        for flag, more in (("--listen", ()), ("--admin", ()), ("--peer-listen", members)):
            done = command.run("run", flag, at, *more, "--", "echo", "started")
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr == (
                f"outrider: cannot start: {flag} {at}: Address already in use. Something else listens there: stop it, "
                f"or choose another address with {flag}.\n"
            )


def test_a_profile_that_does_not_exist_ends_the_start(command: Command, tmp_path: Path) -> None:
    config, credentials = tmp_path / "config", tmp_path / "credentials"
    config.write_text("[default]\nregion = r\n[profile lab]\nregion = r\n[sso-session corp]\nsso_region = r\n")
    credentials.write_text("[ci]\naws_access_key_id = a\naws_secret_access_key = b\n")
    command.environ |= {"AWS_CONFIG_FILE": str(config), "AWS_SHARED_CREDENTIALS_FILE": str(credentials)}
    command.environ["AWS_PROFILE"] = "lap"
    done = command.run("run", "--region", "r", "--", "echo", "started")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"outrider: AWS_PROFILE=lap: there is no such profile in {config} and {credentials}. Name one of ci, default, "
        "lab, or unset it.\n"
    )
    command.environ["AWS_PROFILE"] = "ci"
    assert command.run("run", "--region", "r", "--", "true").returncode == 0


def test_a_cache_of_fewer_than_four_blocks_is_reported(command: Command) -> None:
    done = command.run("run", "--cache-size", "31MiB", "--summary", "none", "--", "true")
    assert done.returncode == 0
    warning = json.loads(done.stderr)
    assert warning["event"] == "the cache has room for fewer than four blocks"
    assert warning["do"] == "set --cache-size to 32MiB or more, or make --block-size smaller"
    for flags in (("--cache-size", "32MiB"), ("--cache-size", "4KiB", "--policy", "none")):
        assert command.run("run", *flags, "--summary", "none", "--", "true").stderr == ""


GET_AND_HEAD = """
import os, urllib.request, urllib.error
for method in ("HEAD", "GET"):
    request = urllib.request.Request(os.environ["AWS_ENDPOINT_URL"] + "/mistakes/key", method=method)
    try:
        urllib.request.urlopen(request).close()
    except urllib.error.HTTPError as error:
        print(error.code)
"""


def test_refused_credentials_are_reported_once_and_in_the_summary(command: Command) -> None:
    command.environ["AWS_SECRET_ACCESS_KEY"] = "not-the-secret"
    done = command.run("run", "--", *python(GET_AND_HEAD))
    assert done.stdout == "403\n403\n"
    logged, *summary = done.stderr.splitlines()
    warning = json.loads(logged)
    assert (warning["event"], warning["code"]) == ("the origin refuses the credentials", "SignatureDoesNotMatch")
    assert "the secret does not belong to this key" in warning["do"]
    assert [line for line in summary if warning["code"] in line] == [
        f"outrider: the origin refuses the credentials: {warning['code']}. {warning['do']}"
    ]
    command.environ["AWS_ACCESS_KEY_ID"] = "NOBODYKNOWSTHISKEY"
    done = command.run("run", "--summary", "json", "--", *python(GET_AND_HEAD))
    assert json.loads(done.stderr.splitlines()[-1])["credentials_refused"] == "InvalidAccessKeyId"


def test_an_origin_that_is_not_reached_is_reported_while_the_command_runs(command: Command) -> None:
    (port,) = free_ports(1)
    with command.start("run", "--origin", f"http://127.0.0.1:{port}", "--", "cat", stdin=-1) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == (
            f"outrider: the bucket at http://127.0.0.1:{port} does not answer: cannot connect: Connection refused. "
            "Reads are tried again; see that --origin is right, and run `outrider doctor`.\n"
        )
        out, _ = process.communicate("read on\n", timeout=DEADLINE_S)
    assert (process.returncode, out) == (0, "read on\n")


def test_a_simulation_on_a_pipe_begins_to_print_before_it_has_a_result(command: Command) -> None:
    for words, heading in (((), "cache  policy"), (("--nodes", "64"), "cache        way")):
        with command.start("simulate", "--shards", "100000", *words) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(heading)
            assert process.poll() is None
            process.kill()


async def test_an_origin_that_says_nothing_is_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        await report_if_unreachable(endpoint, "r", AwsCredentials(), within_s=0.01)
    assert f"the bucket at {endpoint} does not answer: nothing came within" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["tests.bench.demo", "tests.bench.cluster_demo"])
def test_a_demo_on_a_pipe_says_each_step_as_it_begins(module: str) -> None:
    with (
        # Its S3 server has sockets there, whose paths must be short.
        scratch_directory("demo-") as directory,
        Process(
            [sys.executable, "-m", module], env=clean_environment() | {"TMPDIR": str(directory)}, cwd=ROOT,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "starting an S3 server\n"
            assert process.stdout.readline().startswith("writing ")
        finally:
            process.terminate()
            process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
