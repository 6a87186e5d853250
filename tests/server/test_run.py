"""`outrider run` with a real child before a real bucket: environment, signals, exit status and the summary.

`tests/unit/cli/test_run_parts.py` has what needs no process.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from tests.support.bucket import REGION
from tests.support.child import free_ports
from tests.support.forkserver import shell_command, usual_server
from tests.support.proxy import DEADLINE_S, Command, Process, ServedProxy, python

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bucket import Bucket

MIB = 1024 * 1024
# 251 is prime, so bytes shifted by any power of two show.
RAMP = (bytes(range(251)) * (3 * MIB // 251 + 1))[: 3 * MIB]

SHOW_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"
READ = """
import sys, hashlib, urllib.request, os
for _ in range(int(sys.argv[1])):
    with urllib.request.urlopen(os.environ["AWS_ENDPOINT_URL"] + "/run/ramp") as reply:
        print(hashlib.sha256(reply.read()).hexdigest(), reply.headers["x-cache"])
"""
# Prints when it can take signals, records each, and ends at SIGTERM with status 5. It uses os.write, since a signal may
# come while the first line is written, and print is not reentrant. It waits on a pipe: a signal between a look and
# signal.pause() would be recorded with the next one.
NOTE_SIGNALS = """
import os, signal, sys
def note(number, frame):
    os.write(1, signal.Signals(number).name.encode() + b"\\n")
    if number == signal.SIGTERM:
        sys.exit(5)
for name in ("SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGTERM"):
    signal.signal(getattr(signal, name), note)
came, comes = os.pipe()
os.set_blocking(comes, False)
signal.set_wakeup_fd(comes)
os.write(1, b"up\\n")
while True:
    os.read(came, 1)
"""


@pytest.fixture
def command(bucket: Bucket, tmp_path: Path) -> Command:
    made = Command(bucket, tmp_path)
    made.environ["OUTRIDER_ORIGIN"] = bucket.endpoint
    return made


@pytest.fixture(scope="module", autouse=True)
def ramp(bucket: Bucket) -> None:
    bucket.store("run", {"ramp": RAMP})


def test_the_child_gets_the_endpoint_in_every_variable_that_tools_read(command: Command, bucket: Bucket) -> None:
    (port,) = free_ports(1)
    # A named origin wins over the endpoint in the environment.
    command.environ["AWS_ENDPOINT_URL"] = "http://127.0.0.1:1"

    def environment_of_child(*flags: str) -> dict[str, str]:
        done = command.run("run", *flags, "--", *python(SHOW_ENVIRONMENT))
        assert done.returncode == 0, done.stderr
        assert "the bucket is at" not in done.stderr
        return dict(json.loads(done.stdout))

    environment = environment_of_child()
    endpoint = environment["AWS_ENDPOINT_URL"]
    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9][0-9]*", endpoint)
    assert environment["AWS_ENDPOINT_URL_S3"] == environment["S3_ENDPOINT_URL"] == endpoint
    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9][0-9]*", environment["OUTRIDER_STATUS_URL"])
    assert environment["OUTRIDER_STATUS_URL"] != endpoint
    own = environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"]
    assert own == (bucket.access_key, bucket.secret_key)
    command.without("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    environment = environment_of_child("--listen", f"127.0.0.1:{port}")
    assert environment["AWS_ENDPOINT_URL"] == f"http://127.0.0.1:{port}"
    assert environment["AWS_ACCESS_KEY_ID"] == environment["AWS_SECRET_ACCESS_KEY"] == "outrider-accepts-any"


def test_the_endpoint_of_the_aws_environment_is_the_origin(command: Command, bucket: Bucket, tmp_path: Path) -> None:
    command.without("OUTRIDER_ORIGIN")
    config = tmp_path / "config"
    config.write_text(f"[profile lab]\nendpoint_url = {bucket.endpoint}\n")
    for environ, named_by in (
        ({"AWS_ENDPOINT_URL_S3": bucket.endpoint}, "AWS_ENDPOINT_URL_S3"),
        ({"AWS_CONFIG_FILE": str(config), "AWS_PROFILE": "lab"}, "endpoint_url of the AWS profile"),
    ):
        command.environ |= environ
        done = command.run("run", "--", *python(READ, "1"))
        assert (done.returncode, done.stdout.split()[:1]) == (0, [sha256(RAMP).hexdigest()]), done.stderr
        assert f"the bucket is at {bucket.endpoint}, as {named_by} says" in done.stderr
        command.without(*environ)


def serving(bucket: Bucket, directory: Path, **environ: str) -> ServedProxy:
    """`outrider serve` on a port that is known before, with a profile that names the bucket, and without --origin."""
    (port,) = free_ports(1)
    served = ServedProxy(bucket, directory, listen=f"127.0.0.1:{port}")
    at = served.argv.index("--origin")
    del served.argv[at : at + 2]
    config = directory / "config"
    config.write_text(f"[profile lab]\nendpoint_url = {bucket.endpoint}\n"
                      f"[profile own]\nendpoint_url = http://localhost:{port}\n")  # fmt: skip
    named = {name: value.format(port=port) for name, value in environ.items()}
    served.environment |= {"AWS_CONFIG_FILE": str(config), **named}
    return served


def test_serve_finds_the_origin_in_its_environment_too_and_is_not_its_own(bucket: Bucket, tmp_path: Path) -> None:
    own = "http://127.0.0.1:{port}"  # as its clients have it
    for environ, origin, named_by in (
        ({"AWS_PROFILE": "lab", "AWS_ENDPOINT_URL": own}, bucket.endpoint, "endpoint_url of the AWS profile"),
        ({"AWS_PROFILE": "own", "AWS_ENDPOINT_URL_S3": bucket.endpoint}, bucket.endpoint, "AWS_ENDPOINT_URL_S3"),
        ({"AWS_PROFILE": "own", "AWS_ENDPOINT_URL": own}, f"https://s3.{REGION}.amazonaws.com", None),
    ):
        served = serving(bucket, tmp_path, **environ)
        served.log.unlink(missing_ok=True)
        with served:
            assert served.ready_line["origin"] == origin
            assert [line["named_by"] for line in served.lines("origin found")] == ([named_by] if named_by else [])


def test_a_proxy_that_would_be_its_own_origin_is_refused(command: Command) -> None:
    here = ("--origin", "http://127.0.0.1:9480", "--listen", "127.0.0.1:9480")
    command.environ["AWS_ENDPOINT_URL"] = "http://localhost:9480"
    for words in (
        ("serve", *here), ("doctor", *here), ("run", *here, "--", "true"), ("run", *here[2:], "--", "true")
    ):  # fmt: skip
        if "--origin" not in words:
            command.without("OUTRIDER_ORIGIN")
        done = command.run(*words)
        assert done.returncode == 2, words
        assert "the proxy would ask itself" in done.stderr


def test_an_outrider_runs_in_an_outrider(command: Command) -> None:
    outrider = shell_command(usual_server(), "outrider")
    inner = [*outrider, "run", "--cache-dir", str(command.cache_dir.parent / "inner")]
    command.without("OUTRIDER_ORIGIN")
    command.environ["AWS_ENDPOINT_URL"] = "http://127.0.0.1:1"
    done = command.run("run", "--", *inner, "--", "true")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the bucket is at") == 2


def test_the_status_and_the_words_are_the_childs_own(command: Command, tmp_path: Path) -> None:
    for program, status in (("exit 0", 0), ("exit 255", 255), ("kill -9 $$", 128 + signal.SIGKILL)):
        assert command.run("run", "--", "sh", "-c", program).returncode == status
    done = command.run("run", "sh", "-c", 'echo "$0" "$@"', "--help", "--", "--origin")
    assert (done.returncode, done.stdout) == (0, "--help -- --origin\n")
    done = command.run("run", "--", "no-such-command")
    assert (done.returncode, "no-such-command: command not found" in done.stderr) == (127, True)
    script = tmp_path / "script"
    for mode, text, says in (
        (0o644, "#!/bin/sh\n", "not executable"),
        (0o755, "#!/no/such/interpreter\n", "the interpreter that its first line names does not exist"),
        (0o755, "\x00no program", "cannot be run"),
    ):
        script.write_text(text)
        script.chmod(mode)
        done = command.run("run", "--", script)
        assert (done.returncode, says in done.stderr) == (126, True), done.stderr


def test_a_directory_that_another_outrider_uses_is_refused_with_what_to_do(command: Command, bucket: Bucket) -> None:
    with ServedProxy(bucket, command.cache_dir.parent):
        done = command.run("run", "--", "echo", "started")
    assert (done.returncode, done.stdout) == (2, "")
    assert "another process uses it" in done.stderr


def test_a_signal_sent_to_the_command_reaches_the_child_once(command: Command) -> None:
    with started(command) as process:
        assert process.stdout is not None
        for name in ("SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH"):
            process.send_signal(getattr(signal, name))
            assert process.stdout.readline() == f"{name}\n"
        process.terminate()
        assert process.communicate(timeout=DEADLINE_S)[0] == "SIGTERM\n"
    assert process.returncode == 5


def test_a_signal_that_was_ignored_at_the_start_stays_ignored_in_the_child(command: Command) -> None:
    program = "import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    argv = ["nohup", sys.executable, "-m", "outrider", "run", "--", *python(program)]
    done = subprocess.run(argv, env=command.environ, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert done.stdout == "True\n"


def test_ctrl_c_of_a_terminal_is_not_delivered_twice(command: Command) -> None:
    master, slave = pty.openpty()
    argv = [sys.executable, "-m", "outrider", "run", "--", *python(NOTE_SIGNALS)]
    with subprocess.Popen(argv, env=command.environ, preexec_fn=lambda: os.login_tty(slave)) as process:
        os.close(slave)
        try:
            seen = read_until(master, "up\r\n")
            os.write(master, b"\x03")
            seen = read_until(master, "SIGINT\r\n")
            # The terminal's SIGINT is handled before this signal, so a second SIGINT would have been recorded by the
            # time the child ends.
            process.terminate()
            seen += read_until(master, "SIGTERM\r\n")
            process.wait(DEADLINE_S)
        finally:
            os.close(master)
    assert seen.count("SIGINT") == 1
    assert process.returncode == 5


def test_the_summary_counts_the_reads(command: Command) -> None:
    # A verification asks for the checksum in the background: one request more, in time or not.
    command.environ["OUTRIDER_VERIFY_ORIGIN"] = "off"
    first = command.run("run", "--summary", "json", "--", *python(READ, "1"))
    summary = json.loads(first.stderr.splitlines()[-1])
    # Bytes that the reader had not taken when the block was whole came from disk.
    from_disk = summary.pop("cached_bytes")
    assert from_disk < len(RAMP)
    assert summary.pop("verdict")["text"] == "too early to say: too few reads of late"
    assert summary == {
        "reads": 1, "served_bytes": len(RAMP), "origin_bytes": len(RAMP), "origin_requests": 1,
        "hit_ratio": from_disk / len(RAMP), "saved_bytes": 0, "credentials_refused": None,
        "other_requests": 0,
    }  # fmt: skip
    again = command.run("run", "--", *python(READ, "3"))
    assert len(set(again.stdout.splitlines())) == 1
    assert again.stdout.endswith(" HIT\n")
    assert again.stderr == "outrider: 3 reads, 100 % from the cache, nothing from the bucket, 9.4 MB saved\n"
    lists = "import os, urllib.request; urllib.request.urlopen(os.environ['AWS_ENDPOINT_URL']).close()"
    done = command.run("run", "--", *python(lists))
    assert done.stderr == "outrider: no object was read; the proxy had 1 other request\n"


@pytest.mark.parametrize(("form", "stderr"), [("text", "2>/dev/full"), ("text", "<&- 2>&-"), ("json", "2>&-")])
def test_a_closed_or_full_stderr_does_not_change_a_successful_exit(
    command: Command, bucket: Bucket, form: str, stderr: str
) -> None:
    command.without("OUTRIDER_ORIGIN")
    command.environ["AWS_ENDPOINT_URL"] = bucket.endpoint  # the command logs a line about it before the child starts
    words = (sys.executable, "-m", "outrider", "run", "--summary", form, "--", "echo", "hello")
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {stderr}', "sh", *words], env=command.environ, stdout=subprocess.PIPE, text=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "hello\n")


def test_the_child_has_inherited_descriptors_and_none_of_the_proxys(command: Command) -> None:
    """As for descriptors that `<(...)` and make's jobserver pass on."""
    reads, writes = os.pipe()
    program = f"import os; print(os.read({reads}, 9)); print(sorted(map(int, os.listdir('/proc/self/fd'))))"
    os.write(writes, b"handed on")
    done = subprocess.run(
        [sys.executable, "-m", "outrider", "run", "--summary", "none", "--", *python(program)], env=command.environ,
        pass_fds=[reads], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    os.close(reads)
    os.close(writes)
    text, has = done.stdout.splitlines()
    assert text == "b'handed on'"
    # The additional descriptor is the directory that it lists.
    assert set(json.loads(has)) <= {0, 1, 2, 3, 4, reads}
    assert len(json.loads(has)) == 5


def test_the_log_goes_to_stderr_only_if_it_is_asked_for(command: Command) -> None:
    done = command.run("run", "--summary", "none", "--", "echo", "hello")
    assert (done.stdout, done.stderr) == ("hello\n", "")
    done = command.run("run", "--log-level", "info", "--log-format", "json", "--", "true")
    assert '"event": "ready"' in done.stderr


def started(command: Command) -> Process:
    """A running proxy with a running child that records signals."""
    process = command.start("run", "--", *python(NOTE_SIGNALS))
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def read_until(fd: int, end: str) -> str:
    seen = b""
    while end.encode() not in seen:
        assert select.select([fd], [], [], DEADLINE_S)[0], f"only {seen!r} came"
        seen += os.read(fd, 4096)
    return seen.decode()
