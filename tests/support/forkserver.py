"""A fork server: a parent that has imported Outrider and forks a child for each `python -m MODULE` that a test starts.

An import of Outrider takes half a second of CPU, and the tests start hundreds of processes. `Process` stands in for
`subprocess.Popen`. The server is started with the first child, has one thread, and ends with the process that started
it. Tests that start other heavy programs have a `Server` of their own, with the libraries of these. A request is one
message on a socket: a JSON object, the child's standard streams, one end of a socket pair, and the network namespace of
the thread that starts it, where that is another one. On that pair the child sends its pid, and the server later sends
how the child ended. A child whose other end is closed before that is killed.

A child runs its module through `runpy`, as `python -m` does. Five things differ from a real process:
`/proc/PID/cmdline` and `/proc/PID/environ` are the server's, memory that the imports take is shared, all children have
one hash seed, the modules are imported already, and objects that are left at the end are not freed. A test of one of
these passes `forked=False`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

from tests.support.namespaces import set_network_namespace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

REPOSITORY = Path(__file__).parents[2]
# Commands import their own parts, and what they draw with, when they are called.
_COMMANDS = tuple(
    f"outrider.cli.{name}" for name in ("cluster", "doctor.command", "ls", "run.command", "stats", "warm")
)
_LIBRARIES = ("aiobotocore.session", "aiofiles.os", "uvloop", "tests.support.s3_models")
PRELOADED = ("outrider.cli", *_COMMANDS, "outrider.app", *_LIBRARIES)
_AWS = ("awscli.handlers", "awscli.customizations.s3.subcommands", "tests.support.aws_models")
_COMMAND = Path(__file__).parent / "forked_command.py"
_REQUEST_BYTES_MAX = 128 * 1024
_STATUS_BYTES_MAX = 64
_DEADLINE_S = 180.0
_STREAMS = ((0, "r"), (1, "w"), (2, "w"))


def is_forkable(argv: Sequence[str], env: Mapping[str, str] | None = None, **how: Any) -> bool:
    """Whether this is `python -m` of a module of this repository, with no setting that only a new interpreter would
    follow."""
    if list(argv[:2]) != [sys.executable, "-m"] or argv[2].split(".")[0] not in ("outrider", "tests", "examples"):
        return False
    if any(how.get(name) is not None for name in ("preexec_fn", "user", "group", "extra_groups", "executable")):
        return False
    return not how.get("pass_fds") and _read_at_start(os.environ if env is None else env) == _OWN


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    """Whether an interpreter reads this variable as it starts. A child follows PYTHONPATH nevertheless."""
    return {
        name: value
        for name, value in env.items()
        if (name.startswith("PYTHON") and name != "PYTHONPATH") or name.startswith(("LANG", "LC_", "LD_"))
    }


_OWN = _read_at_start(os.environ)


class Process(subprocess.Popen[Any]):
    """`subprocess.Popen`, with a fork wherever a fork gives the same process.

    It overrides the three methods of `Popen` that talk to the kernel; they have been the same from Python 3.11 to 3.13.
    """

    _status: socket.socket

    def __init__(self, argv: Sequence[str], *, forked: bool = True, server: Server | None = None, **how: Any) -> None:
        """`server` None: the one that has imported Outrider."""
        self.is_forked = forked and is_forkable(argv, **how)
        self._server = server
        super().__init__(argv, **how)

    def _execute_child(
        self, args: Sequence[str], executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any,
        env: Mapping[str, str] | None, startupinfo: Any, creationflags: Any, shell: Any, p2cread: int, p2cwrite: int,
        c2pread: int, c2pwrite: int, errread: int, errwrite: int, *rest: Any,
    ) -> None:  # fmt: skip
        if not self.is_forked:
            return super()._execute_child(  # type: ignore[misc, no-any-return]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest,
            )  # fmt: skip
        start_new_session = rest[5]
        request = {
            "argv": list(args[2:]),
            "cwd": str(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
            "new_session": start_new_session,
        }
        given = ((p2cread, 0), (c2pwrite, 1), (errwrite, 2))
        streams = [own if stream == -1 else stream for stream, own in given]
        try:
            self._status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                server = self._server or usual_server()
                with server.network() as network:
                    fds = [*streams, theirs.fileno(), *network]
                    socket.send_fds(server.control, [json.dumps(request).encode()], fds)
            word, _, number = self._status.recv(_STATUS_BYTES_MAX).decode().partition(" ")
            if word != "pid":
                self._status.close()
                raise OSError(f"the fork server made no child of {request['argv']}: {word} {number}")
            self.pid = int(number)
            self._child_created = True
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]
        return None

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """Like `os.waitpid`. The child stays a zombie until its status is read here, so that its number stays its
        own."""
        if not self.is_forked:
            return super()._try_wait(wait_flags)  # type: ignore[misc, no-any-return]
        self._status.setblocking(not wait_flags & os.WNOHANG)
        try:
            word, _, number = self._status.recv(_STATUS_BYTES_MAX).decode().partition(" ")
        except BlockingIOError:
            return 0, 0
        self._status.close()
        if word != "end":
            raise RuntimeError("the fork server ended before its child")
        return self.pid, int(number)

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        if not self.is_forked:
            return super()._internal_poll(_deadstate)  # type: ignore[misc, no-any-return]
        lock: threading.Lock = self._waitpid_lock  # type: ignore[attr-defined]
        if self.returncode is None and lock.acquire(blocking=False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid == self.pid:
                        self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                lock.release()
        code: int | None = self.returncode
        return code


def run(argv: Sequence[str], **how: Any) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` with its output captured, and with a fork wherever a fork gives the same process."""
    with Process(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how) as process:
        try:
            out, err = process.communicate(timeout=_DEADLINE_S)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


class Server:
    """A fork server that has imported `preloaded`. It ends with its context, or with this process."""

    def __init__(self, *preloaded: str) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind("")  # the kernel chooses an abstract name
        listener.listen()
        self.name = bytes(listener.getsockname()[1:]).decode()
        """The socket for commands of a shell (`shell_command`), in the abstract namespace."""
        with theirs, listener:
            given = (theirs.fileno(), listener.fileno())
            argv = [sys.executable, "-m", "tests.support.forkserver", *map(str, given), *preloaded]
            self._process = subprocess.Popen(argv, cwd=REPOSITORY, stdin=subprocess.DEVNULL, pass_fds=given)

    @contextlib.contextmanager
    def network(self) -> Iterator[list[int]]:
        """A descriptor of this thread's network namespace, where that is another than the server's."""
        own = "/proc/thread-self/ns/net"
        if os.readlink(own) == os.readlink(f"/proc/{self._process.pid}/ns/net"):
            yield []
            return
        descriptor = os.open(own, os.O_RDONLY)
        try:
            yield [descriptor]
        finally:
            os.close(descriptor)

    def close(self) -> None:
        self.control.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_STARTING = threading.Lock()


@cache
def _started(*preloaded: str) -> Server:
    server = Server(*preloaded)
    atexit.register(server.close)
    return server


def usual_server() -> Server:
    with _STARTING:
        return _started(*PRELOADED)


def server_with_aws() -> Server:
    """Has imported Outrider and the command `aws` (`tests.support.aws`), two thirds of whose time are its imports."""
    with _STARTING:
        return _started(*PRELOADED, *_AWS)


def shell_command(server: Server, module: str) -> list[str]:
    """The words by which a shell runs `module` in a child of `server`."""
    return [sys.executable, "-SEs", str(_COMMAND), server.name, module]


def write_program(path: Path, words: Sequence[str]) -> None:
    """A program that runs these words, and its own behind them."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    path.chmod(0o755)


# -- in the server --------------------------------------------------------------------------------------------------


def serve(control: socket.socket, listener: socket.socket) -> str:
    """Fork children until the other end of `control` closes. Returns in each child: the module that it is to run."""
    chosen = selectors.DefaultSelector()
    chosen.register(control, selectors.EVENT_READ)
    chosen.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in chosen.select():
            if key.data is not None:
                # The child has ended, or the process that started it knows its status and has closed the socket.
                _advance(chosen, key)
                continue
            requesting = control if key.fileobj is control else listener.accept()[0]
            data, fds, _, _ = socket.recv_fds(requesting, _REQUEST_BYTES_MAX, len(_STREAMS) + 2)
            if requesting is not control:
                requesting.close()
            elif not data:
                os._exit(0)
            streams, status, network = fds[: len(_STREAMS)], fds[len(_STREAMS)], fds[len(_STREAMS) + 1 :]
            pid = os.fork()
            if pid == 0:
                _close_all(chosen)
                for namespace in network:
                    set_network_namespace(namespace)
                    os.close(namespace)
                return _become(json.loads(data), streams, socket.socket(fileno=status))
            for given in (*streams, *network):
                os.close(given)
            child = (pid, os.pidfd_open(pid), socket.socket(fileno=status))
            for file in child[1:]:
                chosen.register(file, selectors.EVENT_READ, child)


def _advance(chosen: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    if chosen.get_map().get(key.fileobj) is not key:
        return  # closed with the other one of this child
    pid, pidfd, status = key.data
    chosen.unregister(key.fileobj)
    if key.fileobj == pidfd:
        ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        os.close(pidfd)
        # The status as `os.waitpid` returns it.
        code = ended.si_status << 8 if ended.si_code == os.CLD_EXITED else ended.si_status
        with contextlib.suppress(OSError):
            status.send(f"end {code}".encode())
        return
    status.close()
    other = chosen.get_map().get(pidfd)
    # Once the child has ended, the number may be that of another descriptor.
    if other is not None and other.data is key.data:
        # Nobody is left who waits for it.
        chosen.unregister(pidfd)
        os.close(pidfd)
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _close_all(chosen: selectors.BaseSelector) -> None:
    """Close, in a new child, the descriptors of the server and of the other children."""
    for key in list(chosen.get_map().values()):
        os.close(key.fd)
        if isinstance(key.fileobj, socket.socket):
            key.fileobj.detach()
    chosen.close()


def _become(request: dict[str, Any], streams: Sequence[int], status: socket.socket) -> str:
    """Make this child equal to one that `python -m` would have started."""
    with status:
        if request["new_session"]:
            os.setsid()
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        for given, (stream, _) in zip(streams, _STREAMS, strict=True):
            os.dup2(given, stream)
            os.close(given)
        # Without PYTHONPATH an interpreter puts the working directory first in its path.
        others = request["env"].get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:] = [request["cwd"], *(os.path.abspath(path) for path in others if path), *sys.path]
        sys.argv[:] = request["argv"]
        for name, (stream, mode) in zip(("stdin", "stdout", "stderr"), _STREAMS, strict=True):
            made = _like(getattr(sys, name), io.FileIO(stream, mode, closefd=False))
            setattr(sys, name, made)
            setattr(sys, f"__{name}__", made)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        status.send(f"pid {os.getpid()}".encode())
    return str(sys.argv[0])


def _like(before: io.TextIOWrapper, raw: io.FileIO) -> io.TextIOWrapper:
    """A standard stream as a new interpreter opens it, with the server's encoding and its `-u`."""
    unbuffered = isinstance(before.buffer, io.RawIOBase)
    buffer = io.BufferedReader(raw) if raw.readable() else raw if unbuffered else io.BufferedWriter(raw)
    by_line = before.line_buffering or (raw.isatty() and not unbuffered)
    return io.TextIOWrapper(
        buffer, before.encoding, before.errors, line_buffering=by_line, write_through=before.write_through
    )


def main() -> None:
    # Ctrl-C is for the children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    own = {str(REPOSITORY), *(os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep))}
    control, listener, *preloaded = sys.argv[1:]
    for name in preloaded:
        importlib.import_module(name)
    sys.path[:] = [path for path in sys.path if path not in own]
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, "a thread would be missing in each child"
    module = serve(*(socket.socket(fileno=int(number)) for number in (control, listener)))
    status: Any = None
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        status = ended.code
    if status is None or isinstance(status, int):
        _end(status or 0)
    sys.exit(status)


def _end(status: int) -> NoReturn:
    """As an interpreter ends, but that it frees each object: a fork would copy its parent's memory for that, 60 ms of
    CPU."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except OSError:
        sys.exit(status)  # the interpreter reports it
    os._exit(status & 0xFF)


if __name__ == "__main__":
    main()
