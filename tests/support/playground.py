"""A real S3 server on loopback with a small dataset, for users who have no bucket at hand: `make playground`.

`start` leaves it running and writes `playground.env`, which names it to the AWS tools and to Outrider; `stop` ends it,
and prints the line that unsets these variables.
The server writes to `playground.log`, and holds nothing of the terminal or pipe from which it was started.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.bucket import Bucket

BUCKET, SHARDS, SAMPLES = "playground", 24, 20
IMAGE_BYTES = 100_000
ENVIRONMENT, LOG = Path("playground.env"), Path("playground.log")
_PID = "# process "
_DEADLINE_S = 60.0
# One grey picture. Decoders stop at its end. The bytes after it make it as large as a camera's, and each one different.
_JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8ybqm"
    "x5moq6T/wAALCAAQABABAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAAP/EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAIAQEAAD8AAP/Z"
)


def shard(number: int) -> bytes:
    """A tar of samples as WebDataset reads them: `.jpg` and `.cls`. The same number gives the same bytes."""
    chance = random.Random(number)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for sample in range(number * SAMPLES, (number + 1) * SAMPLES):
            for ending, body in (("jpg", _JPEG + chance.randbytes(IMAGE_BYTES)), ("cls", str(sample % 10).encode())):
                member = tarfile.TarInfo(f"{sample:06}.{ending}")
                member.size = len(body)
                tar.addfile(member, io.BytesIO(body))
    return file.getvalue()


def filled(bucket: Bucket) -> str:
    """Fill it with the dataset; returns the shell's lines that name it to the AWS tools and to Outrider."""
    bucket.make_bucket(BUCKET)
    with contextlib.closing(bucket.client()) as client:
        for number in range(SHARDS):
            client.put_object(Bucket=BUCKET, Key=f"train/{number:06}.tar", Body=shard(number))
    named = {**bucket.environment(), "OUTRIDER_ORIGIN": bucket.endpoint}
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in named.items())


def serve() -> None:
    """Serve until SIGTERM or SIGINT."""
    ended = threading.Event()
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, lambda *_: ended.set())
    with Bucket() as bucket:
        lines = [f"{_PID}{os.getpid()}\n", filled(bucket)]
        # Written whole or not at all, since `start` waits for it.
        unfinished = ENVIRONMENT.with_suffix(".tmp")
        unfinished.write_text("".join(lines))
        unfinished.rename(ENVIRONMENT)
        try:
            ended.wait()
        finally:
            LOG.unlink(missing_ok=True)
            ENVIRONMENT.unlink(missing_ok=True)


def start() -> str:
    """Returns when the bucket is full; prints the next steps."""
    if _pid() is None:
        ENVIRONMENT.unlink(missing_ok=True)
        with LOG.open("wb") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "tests.support.playground", "serve"], stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        _wait_until(lambda: ENVIRONMENT.exists() or server.poll() is not None)
        if not ENVIRONMENT.exists():
            server.terminate()
            raise SystemExit(f"the playground's S3 server did not start:\n{LOG.read_text(errors='replace')}")
    return (
        f"s3://{BUCKET}/train/ has {SHARDS} shards, {{000000..{SHARDS - 1:06}}}.tar. For its keys and address:\n"
        f'. ./{ENVIRONMENT}\n`eval "$(make playground-stop)"` ends it, and unsets them.\n'
    )


def stop() -> str:
    """Returns the line by which a shell forgets what it has sourced; empty: there was no playground."""
    pid = _pid()
    if pid is None:
        print("no playground runs here", file=sys.stderr)
        return ""
    names = re.findall(r"^export (\w+)=", ENVIRONMENT.read_text(), re.MULTILINE)
    os.kill(pid, signal.SIGTERM)
    _wait_until(lambda: not ENVIRONMENT.exists())
    # In `eval "$(...)"` nobody sees that line.
    more = "; this line is for the shells that have its variables:" if sys.stdout.isatty() else ""
    print(f"the playground has stopped{more}", file=sys.stderr)
    return f"unset {' '.join(names)}\n"


def _pid() -> int | None:
    """The process that was started in this directory; None: there is none, or it died."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        pid = int(ENVIRONMENT.read_text().splitlines()[0].removeprefix(_PID))
        os.kill(pid, 0)
        return pid
    return None


def _wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + _DEADLINE_S
    while not true() and time.monotonic() < until:
        time.sleep(0.05)


if __name__ == "__main__":
    [word] = sys.argv[1:]
    if word == "serve":
        serve()
    else:
        print({"start": start, "stop": stop}[word](), end="")
