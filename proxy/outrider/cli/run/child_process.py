"""Starts the child process of `outrider run`, passes signals on to it, and waits for its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any

_PASSED_ON = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH,
)  # fmt: skip
# The terminal sends these to the whole foreground process group, so the child gets them without our help.
_FROM_KEYBOARD = (signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH)
_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)

NOT_EXECUTABLE, NOT_FOUND = 126, 127


class CannotStart(Exception):
    """The command could not be started. `status` is the one a shell would exit with; the message says what to do."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Signals:
    """Between `install` and `remove`, signals of this process are passed on to the child.

    A signal that would end a process, and comes before the child was started, sets `ended_by` and `ending`.
    """

    def __init__(self) -> None:
        self.ended_by: signal.Signals | None = None
        self.ending = asyncio.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._replaced: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        loop = asyncio.get_running_loop()

        # Not by `loop.add_signal_handler`: where two signals come at once, uvloop (0.23) may call the handler of the
        # second one twice. A child that ends at SIGTERM would be killed by the other SIGTERM.
        def on_signal(number: int, _: object) -> None:
            if self._child is not None:
                loop.call_soon_threadsafe(self._pass_on, signal.Signals(number))
            elif number in _ENDING and self.ended_by is None:
                # Not in a later turn of the loop: the child may be started in this one.
                self.ended_by = signal.Signals(number)
                loop.call_soon_threadsafe(self.ending.set)

        for number in _PASSED_ON:
            # A signal that is ignored at our start (nohup) must be ignored in the child as well. exec keeps a signal
            # ignored, but resets one that has a handler.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._replaced[number] = signal.signal(number, on_signal)
                # System calls of libraries go on after it.
                signal.siginterrupt(number, False)

    def remove(self) -> None:
        for number, handler in self._replaced.items():
            # None: it was not installed by Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def to(self, child: subprocess.Popen[bytes]) -> None:
        """From here on `child` gets the signals, also one that came while it was being started."""
        self._child = child
        if self.ended_by is not None:
            # The caller checked `ended_by` before it forked, so the signal came later; `_pass_on` knows whether the
            # terminal sent it to the child as well.
            self._pass_on(self.ended_by)

    def _pass_on(self, number: signal.Signals) -> None:
        assert self._child is not None
        if not (number in _FROM_KEYBOARD and _in_foreground()):
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(number)


def start(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the child with our own stdin, stdout, stderr and all other inherited descriptors.

    asyncio's subprocesses are not used: uvloop's children forget which signals were ignored, and uvloop gives a file
    that the kernel cannot run to a shell.

    Raises:
        CannotStart
    """
    name = command[0]
    try:
        # Inherited descriptors are meant for the command, too: `<(...)`, make's jobserver, a socket that was passed on.
        # exec closes the descriptors that this process opened itself (PEP 446).
        return subprocess.Popen(command, env=environ, close_fds=False)
    except FileNotFoundError as error:
        if "/" in name and os.path.exists(name):  # noqa: PTH110 - on the way out
            raise CannotStart(
                NOT_EXECUTABLE, f"{name}: the interpreter that its first line names does not exist. Correct that line."
            ) from error
        raise CannotStart(
            NOT_FOUND, f"{name}: command not found. Check the spelling, PATH and the virtualenv."
        ) from error
    except PermissionError as error:
        raise CannotStart(NOT_EXECUTABLE, f"{name}: not executable. chmod +x it, or name its interpreter.") from error
    except OSError as error:
        raise CannotStart(
            NOT_EXECUTABLE, f"{name}: cannot be run: {error.strerror}. Does a script lack its #! line?"
        ) from error


async def ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of `process`. Returns its return code."""
    loop = asyncio.get_running_loop()
    code: asyncio.Future[int] = loop.create_future()

    def ended_with(returncode: int) -> None:
        if not code.done():
            code.set_result(returncode)

    def wait() -> None:
        returncode = process.wait()
        with contextlib.suppress(RuntimeError):  # the loop ended before the child
            loop.call_soon_threadsafe(ended_with, returncode)

    # A daemon thread: the exit of this process does not wait for it.
    threading.Thread(target=wait, name="child", daemon=True).start()
    return await code


def status_of(returncode: int) -> int:
    """The exit status as a shell gives it: 128 + n for a child that signal n ended."""
    return returncode if returncode >= 0 else 128 - returncode


def _in_foreground() -> bool:
    """Whether this process, and with it the child, is in the foreground of a terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
