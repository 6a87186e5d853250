"""A reader that lets the kernel drop the bytes uncopied (MSG_TRUNC): `python -m tests.bench.sink TIMES URL`.

Prints `ready`, waits for a line, reads the URL whole TIMES times on one connection, then prints the number of bytes.
"""

from __future__ import annotations

import socket
import sys
from urllib.parse import urlsplit

_PIECE_BYTES = 1024 * 1024
_HEAD_BYTES_MAX = 16_384


def main() -> None:
    times, url = int(sys.argv[1]), urlsplit(sys.argv[2])
    path = url.path + (f"?{url.query}" if url.query else "")
    assert url.port is not None
    with socket.create_connection((url.hostname, url.port)) as connection:
        print("ready", flush=True)
        sys.stdin.readline()
        request = f"GET {path} HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n"
        print(sum(read_one(connection, request) for _ in range(times)), flush=True)


def read_one(connection: socket.socket, request: str) -> int:
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


if __name__ == "__main__":
    main()
