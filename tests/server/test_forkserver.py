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
BOTH = pytest.mark.parametrize("forked", [True, False])


def started(*words: str, forked: bool, **how: Any) -> Process:
    process = Process([sys.executable, "-m", MODULE, *words], forked=forked, text=True, **how)
    assert process.is_forked == forked
    return process


def told(directory: Path, *, forked: bool) -> dict[str, Any]:
    environ = {**os.environ, "TOLD": "by the test", "PYTHONPATH": f"{REPOSITORY}{os.pathsep}."}
    streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with started(
        "tell", "a word", "--b", forked=forked, cwd=directory, env=environ, start_new_session=True, **streams
    ) as process:
        out, err = process.communicate("what is typed\n", timeout=DEADLINE_S)
    assert process.returncode == 0, err
    assert err == "to stderr\n"
    found: dict[str, Any] = json.loads(out)
    assert (found.pop("pid"), found.pop("session")) == (process.pid, process.pid)
    return found


def test_a_child_has_the_arguments_streams_environment_and_path_of_a_new_interpreter(tmp_path: Path) -> None:
    forked, executed = told(tmp_path, forked=True), told(tmp_path, forked=False)
    assert forked == executed
    assert forked["stdin"] == "what is typed\n"
    assert forked["cwd"] == str(tmp_path)


@BOTH
@pytest.mark.parametrize(("word", "status"), [("0", 0), ("7", 7), ("raise", 1), ("threads", 0)])
def test_the_exit_status_is_the_childs(forked: bool, word: str, status: int) -> None:
    with started("exit", word, forked=forked, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == status
    assert ("ValueError: on purpose" in err) == (word == "raise")
    assert out == {"0": "at exit\n", "7": "at exit\n", "raise": "at exit\n", "threads": "a thread\nat exit\n"}[word]


@BOTH
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_and_is_its_status(forked: bool, number: signal.Signals) -> None:
    with started("wait", forked=forked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == -number
        assert process.poll() == -number


@BOTH
def test_its_pid_is_not_reused_until_it_was_waited_for(forked: bool) -> None:
    with started("exit", "0", forked=forked, stdout=subprocess.DEVNULL) as process:
        pidfd = os.pidfd_open(process.pid)
        readable, _, _ = select.select([pidfd], [], [], DEADLINE_S)
        os.close(pidfd)
        assert readable
        os.kill(process.pid, 0)
        assert process.wait(DEADLINE_S) == 0


def test_a_child_holds_no_stream_of_another() -> None:
    """The end of one child shows at its pipe, even while children that began later go on."""
    piped: dict[str, Any] = {"forked": True, "stdout": subprocess.PIPE}
    with started("exit", "0", **piped) as first, started("wait", **piped) as second:
        assert first.communicate(timeout=DEADLINE_S)[0] == "at exit\n"
        second.kill()


@pytest.mark.parametrize(
    ("words", "how"),
    [
        (("-c", "pass"), {}),
        (("-X", "dev", "-m", "outrider"), {}),
        (("-m", "json.tool"), {}),
        (("-m", "outrider"), {"env": {**os.environ, "PYTHONMALLOC": "debug"}}),
        (("-m", "outrider"), {"preexec_fn": os.setsid}),
        (("-m", "outrider"), {"user": 1}),
    ],
)
def test_variables_that_only_a_new_interpreter_follows_get_one(words: tuple[str, ...], how: dict[str, Any]) -> None:
    assert is_forkable([sys.executable, "-m", "outrider"])
    assert not is_forkable([sys.executable, *words], **how)


@pytest.mark.parametrize(("words", "status"), [(("exit", "7"), 7), (("exit", "raise"), 1)])
def test_a_command_of_a_shell_has_the_streams_and_the_status_of_its_child(words: tuple[str, ...], status: int) -> None:
    done = subprocess.run(
        [*shell_command(usual_server(), MODULE), *words], capture_output=True, text=True, cwd=REPOSITORY,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (status, "at exit\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_a_command_of_a_shell_ends_its_child(number: signal.Signals) -> None:
    with subprocess.Popen(
        [*shell_command(usual_server(), MODULE), "wait"], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "waits\n"
        command.send_signal(number)
        # The child holds the other end.
        assert command.stdout.read() == ""
        assert command.wait(DEADLINE_S) == -number
