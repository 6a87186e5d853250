"""The fork server (`tests.support.forkserver`): a forked process behaves like one with an interpreter of its own."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.forkserver import REPOSITORY, Process, is_forkable, shell_command, usual_server

MODULE = "tests.server.forked_example"
DEADLINE_S = 60.0


def started(*words: str, forked: bool, **how: Any) -> Process:
    process = Process([sys.executable, "-m", MODULE, *words], forked=forked, text=True, **how)
    assert process.is_forked == forked
    return process


def report(directory: Path, *, forked: bool) -> dict[str, Any]:
    environ = {**os.environ, "GIVEN": "by the test", "PYTHONPATH": f"{REPOSITORY}{os.pathsep}."}
    streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with started(
        "report", "a word", "--b", forked=forked, cwd=directory, env=environ, start_new_session=True, **streams
    ) as process:
        out, err = process.communicate("what is typed\n", timeout=DEADLINE_S)
    assert process.returncode == 0, err
    assert err == "to stderr\n"
    found: dict[str, Any] = json.loads(out)
    assert (found.pop("pid"), found.pop("session")) == (process.pid, process.pid)
    return found


def test_a_child_has_the_arguments_streams_environment_and_path_of_a_new_interpreter(tmp_path: Path) -> None:
    forked, executed = report(tmp_path, forked=True), report(tmp_path, forked=False)
    assert forked == executed
    assert forked["stdin"] == "what is typed\n"
    assert forked["cwd"] == str(tmp_path)


def test_the_exit_status_is_the_childs() -> None:
    for word, status, printed in (
        ("0", 0, "at exit\n"), ("7", 7, "at exit\n"), ("raise", 1, "at exit\n"), ("threads", 0, "a thread\nat exit\n")
    ):  # fmt: skip
        with started("exit", word, forked=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            out, err = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, out) == (status, printed)
        assert ("ValueError: on purpose" in err) == (word == "raise")


def test_a_signal_ends_it_and_is_its_status() -> None:
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP):
        with started("wait", forked=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "waits\n"
            assert process.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.01)
            process.send_signal(number)
            assert process.wait(DEADLINE_S) == -number
            assert process.poll() == -number


def test_its_pid_is_not_reused_until_it_was_waited_for() -> None:
    with started("exit", "0", forked=True, stdout=subprocess.DEVNULL) as process:
        pidfd = os.pidfd_open(process.pid)
        readable, _, _ = select.select([pidfd], [], [], DEADLINE_S)
        os.close(pidfd)
        assert readable
        os.kill(process.pid, 0)
        assert process.wait(DEADLINE_S) == 0


def test_the_end_of_a_child_is_waited_for_that_began_after_the_end_of_another() -> None:
    """The server may have a descriptor of it under the number of one of the other child's."""
    with started("exit", "0", forked=True, stdout=subprocess.DEVNULL) as first:
        assert select.select([first._status], [], [], DEADLINE_S)[0], "the server has seen its end"
        with started("wait", forked=True, stdout=subprocess.PIPE) as second:
            assert first.wait(DEADLINE_S) == 0
            with started("exit", "0", forked=True, stdout=subprocess.DEVNULL) as third:
                assert third.wait(DEADLINE_S) == 0
            second.kill()
            assert second.wait(DEADLINE_S) == -signal.SIGKILL


def test_a_child_holds_no_stream_of_another() -> None:
    """The end of one child shows at its pipe, even while children that began later go on."""
    piped: dict[str, Any] = {"forked": True, "stdout": subprocess.PIPE}
    with started("exit", "0", **piped) as first, started("wait", **piped) as second:
        assert first.communicate(timeout=DEADLINE_S)[0] == "at exit\n"
        second.kill()


def test_variables_that_only_a_new_interpreter_follows_get_one() -> None:
    assert is_forkable([sys.executable, "-m", "outrider"])
    hows: tuple[dict[str, Any], ...] = (
        {"env": {**os.environ, "PYTHONMALLOC": "debug"}}, {"preexec_fn": os.setsid}, {"user": 1}
    )  # fmt: skip
    for how in hows:
        assert not is_forkable([sys.executable, "-m", "outrider"], **how)
    for words in (("-c", "pass"), ("-X", "dev", "-m", "outrider"), ("-m", "json.tool")):
        assert not is_forkable([sys.executable, *words])


def test_a_command_of_a_shell_has_the_streams_and_the_status_of_its_child() -> None:
    for word, status in (("7", 7), ("raise", 1)):
        done = subprocess.run(
            [*shell_command(usual_server(), MODULE), "exit", word], capture_output=True, text=True, cwd=REPOSITORY,
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (status, "at exit\n")
    for number in (signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen(
            [*shell_command(usual_server(), MODULE), "wait"], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
        ) as command:
            assert command.stdout is not None
            assert command.stdout.readline() == "waits\n"
            command.send_signal(number)
            # The child holds the other end.
            assert command.stdout.read() == ""
            assert command.wait(DEADLINE_S) == -number
