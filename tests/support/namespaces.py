"""Network namespaces on one machine: a switch with a host behind each port, whose links have a rate, and go down.

Needs root and the programs `ip` and `tc`; `are_here` checks.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_NUMBERS = itertools.count()
# A burst of a tenth of a second keeps the rate even on a machine that schedules late.
_BURST_S = 0.1
# A machine that is not there.
_NOBODY = "02:00:00:00:00:00"
_NEIGHBOUR = ("ip", "neighbour")


def are_here() -> bool:
    """Whether namespaces can be made here."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        return False
    probe = f"outrider-{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode == 0
    if made:
        _run("ip", "netns", "delete", probe)
    return made


class Switch:
    """A switch with named hosts, each in a namespace of its own. As a context: it is there, and gone afterwards."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._prefix = f"outrider-{os.getpid()}-{next(_NUMBERS)}"
        self._hosts = {host: number for number, host in enumerate(hosts, 1)}
        self._middle = f"{self._prefix}-switch"

    def address(self, host: str) -> str:
        return f"10.77.0.{self._hosts[host]}"

    def namespace(self, host: str) -> str:
        return f"{self._prefix}-{host}"

    @contextlib.contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """This thread makes its sockets, and starts its processes, on `host`."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            with Path("/run/netns", self.namespace(host)).open() as there:
                set_network_namespace(there.fileno())
            yield
        finally:
            set_network_namespace(home)
            os.close(home)

    def limit(self, host: str, bytes_s: float) -> None:
        """From now on the link of `host` carries so many bytes a second each way."""
        rate, burst = f"{int(bytes_s * 8)}bit", str(int(bytes_s * _BURST_S))
        shaped = ("root", "tbf", "rate", rate, "burst", burst, "latency", "100ms")
        self._in(host, "tc", "qdisc", "replace", "dev", "eth0", *shaped)
        self._in_middle("tc", "qdisc", "replace", "dev", self._port(host), *shaped)

    def cut(self, host: str) -> None:
        """Nothing arrives at `host`, or from it, and nobody is notified."""
        self._in_middle("ip", "link", "set", self._port(host), "nomaster")

    def mend(self, host: str) -> None:
        self._join(host, "switch")

    def split(self, hosts: Iterable[str]) -> None:
        """`hosts` see each other and none of the rest, until `mend`."""
        for host in hosts:
            self._join(host, "other")

    def part(self, some: Iterable[str], others: Iterable[str]) -> None:
        """Nothing arrives from `some` at `others`, or the other way, and nobody is notified. Both see all the
        rest, until `meet`."""
        for host, other in _both_ways(some, others):
            self.mute(host, other)

    def meet(self, some: Iterable[str], others: Iterable[str]) -> None:
        for host, other in _both_ways(some, others):
            self.unmute(host, other)

    def mute(self, host: str, other: str) -> None:
        """Nothing arrives from `host` at `other`, and nobody is notified. The other way is open."""
        self._in(host, *_NEIGHBOUR, "replace", self.address(other), "lladdr", _NOBODY, "dev", "eth0")

    def unmute(self, host: str, other: str) -> None:
        self._in(host, *_NEIGHBOUR, "delete", self.address(other), "dev", "eth0")

    def reset(self, host: str) -> None:
        """All connections of `host` over the switch are reset, at both ends."""
        for other in self._hosts:
            self._in(host, "ss", "--kill", "dst", self.address(other))

    def __enter__(self) -> Self:
        try:
            _run("ip", "netns", "add", self._middle)
            for bridge in ("switch", "other"):
                self._in_middle("ip", "link", "add", bridge, "type", "bridge", "forward_delay", "0")
                self._in_middle("ip", "link", "set", bridge, "up")
            for host in self._hosts:
                self._add(host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for namespace in (*map(self.namespace, self._hosts), self._middle):
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)

    def _add(self, host: str) -> None:
        namespace = self.namespace(host)
        _run("ip", "netns", "add", namespace)
        _run(
            *("ip", "link", "add", "eth0", "netns", namespace, "type", "veth"),
            *("peer", "name", self._port(host), "netns", self._middle),
        )
        self._in(host, "ip", "link", "set", "lo", "up")
        self._in(host, "ip", "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        self._in(host, "ip", "link", "set", "eth0", "up")
        self._in_middle("ip", "link", "set", self._port(host), "up")
        self._join(host, "switch")

    def _port(self, host: str) -> str:
        return f"port{self._hosts[host]}"

    def _join(self, host: str, bridge: str) -> None:
        self._in_middle("ip", "link", "set", self._port(host), "master", bridge)

    def _in(self, host: str, *words: str) -> None:
        _run("ip", "netns", "exec", self.namespace(host), *words)

    def _in_middle(self, *words: str) -> None:
        _run("ip", "netns", "exec", self._middle, *words)


def _both_ways(some: Iterable[str], others: Iterable[str]) -> list[tuple[str, str]]:
    pairs = list(itertools.product(some, others))
    return [*pairs, *((other, one) for one, other in pairs)]


def set_network_namespace(descriptor: int) -> None:
    # `os.setns` came with Python 3.12.
    if _LIBC.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
