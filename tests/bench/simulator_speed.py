"""The bucket simulator's own speed: `python -m tests.bench.simulator_speed` (half a minute, no bucket needed).

A measurement through the simulator is valid only while the simulator is not the bottleneck.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import threading
import time
from pathlib import Path

from tests.support.child import free_ports
from tests.support.simulator import SimulatorProcess

BODY_BYTES = 1_000_000_000
HEAD = f"HTTP/1.1 200 OK\r\nContent-Length: {BODY_BYTES}\r\n\r\n".encode()


def serve_zeros(port: int) -> None:
    """An origin that answers every request with the same long body, as fast as the kernel takes it."""
    piece = bytes(1_000_000)

    def serve(client: socket.socket) -> None:
        with client:
            while client.recv(65536):
                client.sendall(HEAD)
                for _ in range(BODY_BYTES // len(piece)):
                    client.sendall(piece)

    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


def read_one(port: int) -> None:
    buffer = bytearray(1_000_000)
    left = BODY_BYTES + len(HEAD)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        while left:
            got = sock.recv_into(buffer)
            assert got, "short body"
            left -= got


def cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def measure(streams: int, total_mb_s: float | None, connection_mb_s: float | None, origin_port: int) -> str:
    total_bytes_s, connection_bytes_s = (rate and rate * 1e6 for rate in (total_mb_s, connection_mb_s))
    with SimulatorProcess(
        f"127.0.0.1:{origin_port}", total_bytes_s=total_bytes_s, connection_bytes_s=connection_bytes_s
    ) as simulator:
        port = int(simulator.endpoint.rpartition(":")[2])
        before_s, begun = cpu_s(simulator.pid), time.monotonic()
        readers = [threading.Thread(target=read_one, args=(port,)) for _ in range(streams)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        took_s = time.monotonic() - begun
        cores = (cpu_s(simulator.pid) - before_s) / took_s
    return (
        f"{streams:2} streams, limits {connection_mb_s} MB/s each, {total_mb_s} MB/s in all: "
        f"{streams * BODY_BYTES / took_s / 1e6:7.1f} MB/s, {cores:.2f} cores"
    )


def main() -> None:
    argparse.ArgumentParser(prog="python -m tests.bench.simulator_speed", description=__doc__).parse_args()
    (port,) = free_ports(1)
    origin = multiprocessing.get_context("spawn").Process(target=serve_zeros, args=(port,), daemon=True)
    origin.start()
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        for streams, total_mb_s, connection_mb_s in [(1, None, None), (4, None, None), (1, 250, None), (10, 250, 40)]:
            print(measure(streams, total_mb_s, connection_mb_s, port), flush=True)
    finally:
        origin.terminate()
        origin.join()


if __name__ == "__main__":
    main()
