"""A LIST of many names, page by page: direct, through the proxy, and again; and `find` over a mount of them: rows of
`tests.bench.samples`.

The origin is a process of Python that makes each page when it is requested, as S3 writes it, and takes the time that S3
takes for it. It knows the names by their folders of a thousand, as ImageNet has them.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from tests.bench import procs
from tests.support.bucket import Bucket
from tests.support.child import Child, free_ports, scratch_directory
from tests.support.proxy import ServedProxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PAGE_NAMES = FOLDER_NAMES = 1000
_PAGE_S = 0.1
_TOKEN = re.compile(rb"<NextContinuationToken>([0-9]+)<")
_FOLDER = "<CommonPrefixes><Prefix>train/n{:08}/</Prefix></CommonPrefixes>"
_ENTRY = (
    "<Contents><Key>train/n{0:08}/n{0:08}_{1}.JPEG</Key><LastModified>2026-11-23T20:{2:02}:07.000Z</LastModified>"
    "<ETag>&quot;{3}&quot;</ETag><Size>{4}</Size><StorageClass>STANDARD</StorageClass></Contents>"
)


def measured(count: int) -> Iterator[tuple[str, float]]:
    with ExitStack() as stack:
        directory = stack.enter_context(scratch_directory("outrider-lists-"))
        bucket = stack.enter_context(Bucket())
        (port,) = free_ports(1)
        argv = [sys.executable, "-m", "tests.bench.sample_lists", str(port), str(count)]
        origin = Child(argv, log=directory / "origin.log")
        stack.callback(origin.stop)
        proxy = ServedProxy(bucket, directory, f"http://127.0.0.1:{port}")
        proxy.forked = False
        rules = directory / "outrider.toml"
        rules.write_text('[[list_cache]]\nprefixes = "samples/*"\nttl_s = 3600\n')
        proxy.environment["OUTRIDER_CONFIG"] = str(rules)
        stack.enter_context(proxy)
        walked(port, 1)
        direct_s = walked(port, count)
        before_s = procs.cpu_s(proxy.pid)
        first_s = walked(proxy.address[1], count)
        first_cpu_s = procs.cpu_s(proxy.pid) - before_s
        later_s = walked(proxy.address[1], count)
        yield "LIST, direct: s", direct_s
        yield "LIST, the first time / direct", first_s / direct_s
        yield "LIST, later / direct", later_s / direct_s
        pages = count / _PAGE_NAMES
        yield "LIST, the first time: CPU ms a page", first_cpu_s / pages * 1e3
        yield "LIST, later: CPU ms a page", (procs.cpu_s(proxy.pid) - before_s - first_cpu_s) / pages * 1e3
        proxy.stop()
        proxy.start()
        place = directory / "mount"
        place.mkdir()
        environ = {**proxy.environment, "AWS_ENDPOINT_URL": proxy.endpoint}
        argv = [sys.executable, "-m", "outrider", "mount", "s3://samples/train/", str(place)]
        mount = Child(argv, log=directory / "mount.log", env=environ)
        stack.callback(mount.stop)
        mount.wait_until(lambda: os.path.ismount(place), what="the mount", deadline_s=60.0)
        before = procs.rss_bytes(mount.process.pid)
        yield "find over the mount, the first time / LIST direct", found(place, count) / direct_s
        yield "find over the mount, later / LIST direct", found(place, count) / direct_s
        yield "mount: bytes a name", (procs.rss_bytes(mount.process.pid) - before) / count


def found(place: Path, count: int) -> float:
    """The seconds of a `find` that comes upon all files."""
    began = time.monotonic()
    done = subprocess.run(["find", place, "-type", "f", "-printf", "x"], check=True, stdout=subprocess.PIPE)
    assert len(done.stdout) == count, len(done.stdout)
    return time.monotonic() - began


def walked(port: int, count: int) -> float:
    """The seconds of a LIST of all names; at least so many."""
    deadline = time.monotonic() + 60
    while True:
        began = time.monotonic()
        try:
            found = _walk(port)
        except ConnectionRefusedError:
            assert began < deadline, "no origin"
            continue
        assert found >= count, found
        return time.monotonic() - began


def _walk(port: int) -> int:
    connection, found, token = http.client.HTTPConnection("127.0.0.1", port, timeout=60), 0, b""
    try:
        while True:
            way_on = f"&continuation-token={token.decode()}" if token else ""
            connection.request("GET", f"/samples?list-type=2&prefix=train/{way_on}")
            body = connection.getresponse().read()
            found += body.count(b"<Contents>")
            mark = _TOKEN.search(body)
            if mark is None:
                return found
            token = mark[1]
    finally:
        connection.close()


def _facts(number: int) -> tuple[str, int]:
    """The ETag, without quotation marks, and the size of the object of this number."""
    return hashlib.md5(b"%d" % number).hexdigest(), 100_000 + number * 7919 % 20_000


class _Origin(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    count = 0

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        folder = query["prefix"][0].removeprefix("train/").strip("n/")
        first, end = 0, self.count
        if folder:
            first = int(folder) * FOLDER_NAMES
            end = min(first + FOLDER_NAMES, end)
        elif "delimiter" in query:
            end = -(-end // FOLDER_NAMES)
        start = int(query.get("continuation-token", [str(first)])[0])
        stop = min(start + _PAGE_NAMES, end)
        token = f"<NextContinuationToken>{stop}</NextContinuationToken>" if stop < end else ""
        if "delimiter" in query and not folder:
            entries = [_FOLDER.format(n) for n in range(start, stop)]
        else:
            entries = [_ENTRY.format(n // FOLDER_NAMES, n, n % 60, *_facts(n)) for n in range(start, stop)]
        body = (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>samples</Name><Prefix>train/</Prefix><KeyCount>{len(entries)}</KeyCount><MaxKeys>1000</MaxKeys>"
            f"<IsTruncated>{str(bool(token)).lower()}</IsTruncated>{token}{''.join(entries)}</ListBucketResult>"
        ).encode()
        time.sleep(_PAGE_S)
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        """A mount settles the first files by it."""
        number = int(self.path.rpartition("_")[2].removesuffix(".JPEG"))
        etag, size = _facts(number)
        self.send_response(200)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("Content-Length", str(size))
        self.send_header("Last-Modified", f"Mon, 23 Nov 2026 20:{number % 60:02}:07 GMT")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    _Origin.count = int(sys.argv[2])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Origin).serve_forever()
