"""`python -m outrider.mount`: the FUSE client that `outrider mount` starts. Its one argument is JSON."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

from outrider.adapters.origin.credentials import AwsCredentials
from outrider.adapters.origin.endpoint import Endpoint
from outrider.adapters.origin.http_origin import HttpOrigin
from outrider.adapters.process.system import (
    come_first,
    keep_collections_short,
    keep_memory_small,
    new_event_loop,
    raise_open_files_limit,
    set_up_logs,
)
from outrider.metrics import Metrics
from outrider.mount import device
from outrider.mount.bucket import MountBucket
from outrider.mount.file_system import FileSystem
from outrider.mount.loans import LOANS_MAX, Loans
from outrider.mount.messages import READ_BYTES_MAX
from outrider.mount.plain_gets import PlainGets

# Readers that wait at the same time. A FUSE client with fewer would hold back readers that the proxy could serve.
_CONNECTIONS = 128
# The proxy itself waits for a minute where the bucket is away, and knows better than its clients for how long.
_REPLY_S = 120.0
_REPORT_S = 1.0
# Source: linux/prctl.h.
_PR_SET_PDEATHSIG = 1


async def serve(terms: Mapping[str, str], helper: str, open_files: int) -> None:
    """Mount, and serve until it is unmounted, or at SIGTERM. `open_files`: the limit."""
    directory = terms["directory"]
    options = ["ro", "nosuid", "nodev", f"fsname=s3://{terms['bucket']}", "subtype=outrider", "default_permissions"]
    fd = device.mount(helper, directory, [*options, *(["allow_other"] if terms["allow_other"] else [])])
    proxy = HttpOrigin(
        terms["endpoint"], terms["region"], AwsCredentials(), Metrics(), time.time, connections=_CONNECTIONS,
        read_timeout_s=_REPLY_S,
    )  # fmt: skip
    at, plain = Endpoint.at(terms["endpoint"], terms["region"]), None
    if at.base.startswith("http:") and at.proxy.url is None:
        plain = PlainGets(at, terms["bucket"], connections=_CONNECTIONS, reply_s=_REPLY_S)
    loans = Loans(proxy, terms["bucket"], held_max=min(LOANS_MAX, open_files // 2))
    files: FileSystem | None = None
    reporting: asyncio.Task[None] | None = None
    try:
        await proxy.open()
        bucket = MountBucket(proxy, terms["bucket"], plain=plain)
        files = FileSystem(fd, bucket, terms["prefix"], float(terms["believed_s"]), loans=loans)

        def stop(ended: asyncio.Event) -> None:
            subprocess.Popen([helper, "-u", "-z", directory], stderr=subprocess.DEVNULL)
            ended.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop, files.ended)
        await loans.start()
        files.start()
        device.read_ahead(directory, READ_BYTES_MAX)
        reporting = asyncio.create_task(_report_if_empty(bucket, terms["prefix"]), name="prefix")
        await files.ended.wait()
        # A command may end at once for want of files.
        await asyncio.wait([reporting], timeout=_REPORT_S)
    finally:
        if reporting is not None:
            reporting.cancel()
        if files is not None:
            await files.stop()
        await loans.stop()
        os.close(fd)
        if plain is not None:
            plain.close()
        await proxy.close()


async def _report_if_empty(bucket: MountBucket, prefix: str) -> None:
    if (why := await bucket.complaint_about(prefix)) is not None:
        with suppress(OSError):
            sys.stderr.write(f"outrider: {why}\n")
            sys.stderr.flush()


def main() -> None:
    # A mount whose command was killed must not stay behind.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    terms = json.loads(sys.argv[1])
    set_up_logs("warning", None)
    come_first()
    keep_memory_small()
    keep_collections_short()
    open_files = raise_open_files_limit()
    helper = shutil.which("fusermount3") or shutil.which("fusermount") or "fusermount3"
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve(terms, helper, open_files))
    except device.NotMounted:
        sys.exit(1)  # fusermount3 has said why


if __name__ == "__main__":
    main()
