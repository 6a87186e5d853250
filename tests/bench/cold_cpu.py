"""The CPU cost of a cold read: `python -m tests.bench.cold_cpu` prints the proxy's CPU seconds a GB.

The GB are filled and served. CPU time and not throughput: other work on the machine changes CPU time much less. The
origin is a stub that answers ranged GETs with zeros: at full speed; the same over TLS, as most buckets are read; and at
the rate of a bucket (through the simulator), where bytes come in smaller pieces.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import re
import socket
import ssl
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.simulator_speed import cpu_s
from tests.support.bucket import Bucket
from tests.support.child import free_ports
from tests.support.proxy import ServedProxy
from tests.support.simulator import SimulatorProcess
from tests.support.tls import Certificate, certify

OBJECT_BYTES = 256 * 2**20
READERS = 4
ROUNDS = 3
_RANGE = re.compile(rb"range: bytes=(\d+)-(\d+)", re.IGNORECASE)


def serve_zeros(port: int, certificate: Certificate | None) -> None:
    """Every key is an object of zeros. Answers a GET with a Range, as a fill sends it. With a certificate, over TLS."""
    piece = memoryview(bytes(2**20))
    tls = None
    if certificate is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate.chain, certificate.key)

    def answer(client: socket.socket, head: bytes) -> None:
        match = _RANGE.search(head)
        start, last = (0, OBJECT_BYTES - 1) if match is None else (int(match[1]), int(match[2]))
        last = min(last, OBJECT_BYTES - 1)
        left = last + 1 - start
        told = f'HTTP/1.1 206 Partial Content\r\nContent-Length: {left}\r\nETag: "zeros"\r\n'
        told += f"Content-Range: bytes {start}-{last}/{OBJECT_BYTES}\r\n\r\n"
        client.sendall(told.encode())
        while left:
            client.sendall(piece[:left])
            left -= min(left, len(piece))

    def serve(client: socket.socket) -> None:
        held = b""
        with client if tls is None else tls.wrap_socket(client, server_side=True) as client:
            while got := client.recv(65536):
                held += got
                while b"\r\n\r\n" in held:
                    head, _, held = held.partition(b"\r\n\r\n")
                    answer(client, head)

    def serve_one(client: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client hung up
            serve(client)

    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            threading.Thread(target=serve_one, args=(listener.accept()[0],), daemon=True).start()


def read_one(address: tuple[str, int], key: str) -> None:
    buffer = bytearray(2**20)
    with socket.create_connection(address) as sock:
        sock.sendall(f"GET /data/{key} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        got, count = 0, sock.recv_into(buffer)
        while count:
            got += count
            count = sock.recv_into(buffer)
        assert got > OBJECT_BYTES, "short body"


@contextlib.contextmanager
def zeros(certificate: Certificate | None = None) -> Iterator[int]:
    """The port of `serve_zeros` in a process of its own."""
    (port,) = free_ports(1)
    origin = multiprocessing.get_context("spawn").Process(target=serve_zeros, args=(port, certificate), daemon=True)
    origin.start()
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        yield port
    finally:
        origin.terminate()
        origin.join()


def measure(origin: str, label: str, certificate: Certificate | None = None) -> None:
    costs: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        proxy = ServedProxy(Bucket(), Path(directory), origin, cache_size="16GiB")
        if certificate is not None:
            proxy.environment["AWS_CA_BUNDLE"] = str(certificate.authority)
        with proxy:
            for number in range(ROUNDS):
                cost, rate = one_round(proxy, number)
                costs.append(cost)
                print(f"{label}: {cost:.2f} CPU s/GB, {rate:.0f} MB/s", flush=True)
    print(f"{label}: median {statistics.median(costs):.2f} CPU s/GB", flush=True)


def one_round(proxy: ServedProxy, number: int) -> tuple[float, float]:
    """CPU seconds a GB, and MB/s."""
    before_s, begun = cpu_s(proxy.pid), time.monotonic()
    readers = [
        threading.Thread(target=read_one, args=(proxy.address, f"{number}-{reader}")) for reader in range(READERS)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    took_s = time.monotonic() - begun
    proxy.settle()
    amount_gb = READERS * OBJECT_BYTES / 1e9
    return (cpu_s(proxy.pid) - before_s) / amount_gb, amount_gb * 1e3 / took_s


def main() -> None:
    argparse.ArgumentParser(prog="python -m tests.bench.cold_cpu", description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as directory, zeros(certificate := certify(Path(directory))) as port:
        measure(f"https://127.0.0.1:{port}", "full speed, TLS", certificate)
    with zeros() as port:
        measure(f"http://127.0.0.1:{port}", "full speed")
        with SimulatorProcess(f"127.0.0.1:{port}", connection_bytes_s=40e6, total_bytes_s=250e6) as simulator:
            measure(simulator.endpoint, "40 MB/s a connection, 250 MB/s in all")


if __name__ == "__main__":
    main()
