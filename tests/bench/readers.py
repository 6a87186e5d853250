"""Readers in processes of their own: `python -m tests.bench.readers KIND WORD...`, started by `tests.bench.clients`.

Each prints `ready`, waits for a line, reads, and prints the number of bytes:

    boto3 ENDPOINT BUCKET PROBE KEY...  each object whole by one GET, as a data loader's worker does. PROBE is read
                                        before, since the first request of a process is mostly the start of boto3
    files LIST                          each file whole, with a path a line in LIST
    sink TIMES URL                      the URL whole TIMES times on one connection; the kernel drops the bytes
                                        uncopied (MSG_TRUNC)
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

_PIECE_BYTES = 1024 * 1024
_HEAD_BYTES_MAX = 16_384


def by_boto3(endpoint: str, bucket: str, probe: str, *keys: str) -> Iterator[int]:
    """The first value is of what comes before the start."""
    # Here, so that the other readers start without it.
    import boto3
    from botocore.config import Config

    client = boto3.client("s3", endpoint_url=endpoint, config=Config(s3={"addressing_style": "path"}))
    yield len(client.get_object(Bucket=bucket, Key=probe)["Body"].read())
    for key in keys:
        body = client.get_object(Bucket=bucket, Key=key)["Body"]
        yield sum(len(piece) for piece in body.iter_chunks(_PIECE_BYTES))


def of_files(listed: str) -> Iterator[int]:
    paths, piece = Path(listed).read_text().splitlines(), bytearray(_PIECE_BYTES)
    yield 0
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(piece):
                yield count


def into_nothing(times: str, text: str) -> Iterator[int]:
    url = urlsplit(text)
    path = url.path + (f"?{url.query}" if url.query else "")
    assert url.port is not None
    with socket.create_connection((url.hostname, url.port)) as connection:
        yield 0
        request = f"GET {path} HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n"
        for _ in range(int(times)):
            yield _dropped(connection, request)


def _dropped(connection: socket.socket, request: str) -> int:
    """Body bytes of a 200 with a Content-Length; fewer if the connection ended, 0 for any other answer."""
    connection.sendall(request.encode())
    head = b""
    while b"\r\n\r\n" not in head and (piece := connection.recv(_HEAD_BYTES_MAX)):
        head += piece
    head, _, begun = head.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if status.split()[1:2] != ["200"]:
        return 0
    size = int(fields["content-length"])
    left = size - len(begun)
    buffer = bytearray(_PIECE_BYTES)
    while left and (count := connection.recv_into(buffer, min(left, _PIECE_BYTES), socket.MSG_TRUNC)):
        left -= count
    return size - left


def main(kind: str, *words: str) -> None:
    kinds: dict[str, Callable[..., Iterator[int]]] = {"boto3": by_boto3, "files": of_files, "sink": into_nothing}
    reads = kinds[kind](*words)
    next(reads)
    print("ready", flush=True)
    sys.stdin.readline()
    print(sum(reads), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
