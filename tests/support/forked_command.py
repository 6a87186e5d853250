"""A command of a shell that a fork server carries out: `python forked_command.py SERVER MODULE WORD...`.

The child has the streams, the directory and the environment of this process, gets its signals, and gives it its exit
status. It is killed when this process is. SERVER is the name of the fork server's socket (`tests.support.forkserver`).
This file imports nothing of the repository: its start-up is the time that it saves.
"""

import json
import os
import signal
import socket
import sys


def main(server: str, argv: list[str]) -> int:
    status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = {"argv": argv, "cwd": os.getcwd(), "env": dict(os.environ), "new_session": False}
    with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(f"\0{server}")
        socket.send_fds(asking, [json.dumps(request).encode()], [0, 1, 2, theirs.fileno()])
    pid = int(status.recv(64).removeprefix(b"pid "))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: os.kill(pid, received))
    ended = int(status.recv(64).removeprefix(b"end "))
    if os.WIFSIGNALED(ended):
        signal.signal(os.WTERMSIG(ended), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(ended))
    return os.waitstatus_to_exitcode(ended)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
