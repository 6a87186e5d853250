"""Several nodes of one cluster on this machine: each an `outrider serve` process on a loopback address of its own."""

from __future__ import annotations

import contextlib
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.support.child import free_ports, longer_pauses
from tests.support.forkserver import usual_server
from tests.support.proxy import START_DEADLINE_S, ServedProxy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.support.bucket import Bucket
    from tests.support.namespaces import Switch


class Node(ServedProxy):
    """One member. `together` False: it is alone, as a node without `--peers` is."""

    def __init__(
        self, bucket: Bucket, directory: Path, number: int, peer_port: int, *, origin: str | None, together: bool,
        members: Path, key: Path, switch: Switch | None = None, quick_hellos: bool = False, **flags: str,
    ) -> None:  # fmt: skip
        """`number` counts from 1: it is in the name, and in the last part of the loopback address. `switch`: the node
        runs on the host of its name there. `quick_hellos`: see `tests.support.quick_hellos`."""
        self.name = f"node-{number}"
        self.host = f"127.0.0.{number + 1}" if switch is None else "127.0.0.1"
        self.peer_address = f"{self.host if switch is None else switch.address(self.name)}:{peer_port}"
        self.advertised_address = self.peer_address
        self._switch = switch
        if switch is not None:
            # Started on a host of the switch, the fork server would have its socket there.
            usual_server()
        own = {"listen": f"{self.host}:0", "admin": f"{self.host}:0"}
        peers = {
            "peers": f"file:{members}", "peer_listen": self.peer_address, "peer_key_file": str(key),
            "peer_name": self.name,
        }  # fmt: skip
        (directory / self.name).mkdir(exist_ok=True)
        super().__init__(bucket, directory / self.name, origin, **own, **(peers if together else {}), **flags)
        if quick_hellos:
            self.argv[self.argv.index("outrider")] = "tests.support.quick_hellos"

    def advertise(self, address: str) -> None:
        """Others ask this member at `address`, which leads to its peer port: it stands so in its hellos, and in lists
        that are written from now on."""
        self.advertised_address = address
        self.argv += ["--peer-address", address]

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """This thread makes its sockets on the node's host."""
        return contextlib.nullcontext() if self._switch is None else self._switch.inside(self.name)

    def start(self) -> None:
        with self.inside():
            super().start()

    def status(self) -> dict[str, Any]:
        with self.inside():
            return super().status()

    @property
    def cluster(self) -> dict[str, Any]:
        """The cluster as this member sees it."""
        document: dict[str, Any] = self.status()["cluster"]
        return document

    def alive(self) -> set[str]:
        """The names of the members that this one would ask now, its own included."""
        return {member["name"] for member in self.cluster["members"] if member["state"] == "alive"}


class Nodes:
    """`count` nodes over one bucket. As a context: all run, and each sees all others alive."""

    def __init__(
        self, bucket: Bucket, directory: Path, count: int = 3, *, origin: str | None = None, together: bool = True,
        switch: Switch | None = None, quick_hellos: bool = False, **flags: str,
    ) -> None:  # fmt: skip
        """`switch` None: on loopback addresses; else a host `node-1`, `node-2` and so on for each. `quick_hellos`: see
        `tests.support.quick_hellos`."""
        self.members = directory / "members"
        self.key = directory / "key"
        self.key.write_text(secrets.token_hex(32) + "\n")
        self.key.chmod(0o600)
        self.bucket = bucket
        self._together = together
        ports = free_ports(count)
        self.all = [
            Node(
                bucket, directory, number, port, origin=origin, together=together, members=self.members, key=self.key,
                switch=switch, quick_hellos=quick_hellos, **flags,
            )
            for number, port in enumerate(ports, 1)
        ]  # fmt: skip
        self.list_members(self.all)

    def __getitem__(self, index: int) -> Node:
        return self.all[index]

    def __len__(self) -> int:
        return len(self.all)

    def list_members(self, nodes: Iterable[Node], *more: str) -> None:
        """The file that all of them read: renamed whole, as a tool would write it. `more`: lines that follow."""
        lines = [*(f"{node.advertised_address} name={node.name}\n" for node in nodes), *(f"{line}\n" for line in more)]
        new = self.members.with_suffix(".new")
        new.write_text("".join(lines))
        new.rename(self.members)

    def start(self, nodes: Sequence[Node] | None = None) -> None:
        """Start them side by side, and wait until each sees all that run."""
        starting = self.all if nodes is None else nodes
        with ThreadPoolExecutor(len(starting)) as pool:
            list(pool.map(lambda node: node.start(), starting))
        if self._together:
            self.wait_for_all()

    @property
    def running(self) -> list[Node]:
        return [node for node in self.all if node.is_started]

    def wait_for_all(self) -> None:
        """Wait until each member that runs sees all of them alive, and the others of the list not."""
        names = {node.name for node in self.running}
        for node in self.running:
            node.wait_until(lambda node=node: node.alive() == names, f"{node.name}, which is to see {sorted(names)}")  # type: ignore[misc]

    def stop(self) -> None:
        with ThreadPoolExecutor(len(self.all)) as pool:
            list(pool.map(lambda node: node.stop(), self.running))

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def until(condition: Any, what: str, deadline_s: float = START_DEADLINE_S) -> None:
    """Poll `condition` until it is true. Raises RuntimeError after the deadline."""
    end, pauses = time.monotonic() + deadline_s, longer_pauses()
    while True:
        with contextlib.suppress(OSError):
            if condition():
                return
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not within {deadline_s:.0f} s")
        time.sleep(next(pauses))
