"""The program that `tests/server/test_forkserver.py` starts both by the fork server and by a new interpreter."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time


def report() -> None:
    streams = (sys.stdin, sys.stdout, sys.stderr)
    found = {
        "pid": os.getpid(),
        "session": os.getsid(0),
        "argv": sys.argv,
        "name": __name__,
        "cwd": os.getcwd(),
        "path": sys.path,
        "environ": dict(os.environ),
        "stdin": sys.stdin.read(),
        "streams": [(each.encoding, each.errors, each.line_buffering) for each in streams],
        "descriptors": sorted(os.listdir("/proc/self/fd"), key=int)[:-1],
    }
    print("to stderr", file=sys.stderr)
    json.dump(found, sys.stdout)


def end(word: str) -> None:
    atexit.register(print, "at exit")
    if word == "raise":
        raise ValueError("on purpose")
    if word == "threads":
        threading.Timer(0.1, print, ["a thread"]).start()
    else:
        sys.exit(int(word))


def wait() -> None:
    print("waits", flush=True)
    time.sleep(1000)


if __name__ == "__main__":
    if sys.argv[1] == "report":
        report()
    elif sys.argv[1] == "exit":
        end(sys.argv[2])
    else:
        wait()
