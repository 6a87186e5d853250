"""Four members over one bucket, with a simulated link before each peer port: what the bucket and the members are asked
is counted, and bytes stop wherever a test wants. Clients have keys, as tenants do."""

from __future__ import annotations

import random
import signal
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from outrider.core.cluster.member import Member
from outrider.core.cluster.ownership import Ring
from outrider.core.model import ObjectRef
from tests.support.nodes import Node, Nodes
from tests.support.rawhttp import Answer, RawConnection, ask
from tests.support.simulator import Simulator
from tests.support.tenants import answer_to, wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.conditions import Fault, Request
    from tests.support.proxy import Keys

NAME = "faults-of-clusters"
# A body of so many bytes is received by a thread, from its second part on.
BLOCK = 1024 * 1024
SMALL = 64 * 1024
"""The size of blocks that a reader gets once all of their bytes are checked."""
WAIT_S = 0.25
"""A write waits no longer for the members, before it is sent and after its answer."""
TENANT: Keys = ("AKTENANT", "secret-of-the-tenant")
"""The key by which all is asked, unless a test says otherwise. It may read and write the whole bucket."""
STRANGER: Keys = ("AKSTRANGER", "secret-of-the-stranger")
"""It may read and write the keys that begin with `strange/`."""
_CLIENTS = "".join(
    f'[[client]]\naccess_key = "{access_key}"\nsecret_key = "{secret_key}"\n'
    f'grants = [{{bucket = "{NAME}", prefix = "{prefix}", access = "write"}}]\n\n'
    for (access_key, secret_key), prefix in ((TENANT, ""), (STRANGER, "strange/"))
)
_numbers = count()


class Stored(NamedTuple):
    """An object, as it is in the bucket."""

    key: str
    data: bytes


@dataclass
class World:
    """As a context: all members run. `simulator` stands before the bucket, `links` before the peer ports, by name."""

    bucket: Bucket
    directory: Path
    count: int = 4
    block_bytes: int = BLOCK
    flags: dict[str, Any] = field(default_factory=dict)
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    links: dict[str, Simulator] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.bucket.make_bucket(NAME)
        self.simulator = Simulator(self.bucket.address, keys=(self.bucket.access_key, self.bucket.secret_key))
        clients = self.directory / "clients.toml"
        clients.write_text(_CLIENTS)
        clients.chmod(0o600)
        flags: dict[str, Any] = {
            "auth": "sigv4",
            "clients": str(clients),
            "block_size": str(self.block_bytes),
            "prefetch": "off",
            "freshness": "ttl:3600",
            **self.flags,
        }
        self.nodes = Nodes(
            self.bucket, self.directory, self.count, origin=self.simulator.endpoint, quick_hellos=True, **flags
        )
        for node in self.nodes.all:
            self.links[node.name] = link = Simulator(node.peer_address)
            node.advertise(link.endpoint.removeprefix("http://"))
        self.nodes.list_members(self.nodes.all)
        # Members of one size: the order of owners does not depend on what it is.
        self._ring = Ring(Member(node.name, node.peer_address, "", 1, "") for node in self.nodes.all)

    def __enter__(self) -> Self:
        try:
            self.direct = self.bucket.client()
            self._stack.callback(self.direct.close)
            for simulator in (self.simulator, *self.links.values()):
                self._stack.enter_context(simulator)
            self._stack.enter_context(self.nodes)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.running:
            node.send(signal.SIGCONT)
        self._stack.close()

    # -- objects ------------------------------------------------------------------------------------------------------

    def put(self, blocks: int = 1, key: str | None = None) -> Stored:
        """A new object, written past all members."""
        stored = Stored(key or f"train/{next(_numbers):05d}", self.rng.randbytes(blocks * self.block_bytes))
        self.direct.put_object(Bucket=NAME, Key=stored.key, Body=stored.data)
        return stored

    def put_owned(self, *owners: Sequence[Node]) -> Stored:
        """An object with a block for each of `owners`: its owner, and the stand-ins as far as they matter."""
        wanted = [[node.name for node in order] for order in owners]
        while True:
            key = f"owned/{next(_numbers):05d}"
            orders = (self._ring.owners(ObjectRef(NAME, key), index) for index in range(len(owners)))
            if all(
                [member.name for member in order[: len(names)]] == names
                for order, names in zip(orders, wanted, strict=True)
            ):
                return self.put(len(owners), key)

    def overwrite(self, stored: Stored) -> Stored:
        return self.put(len(stored.data) // self.block_bytes, stored.key)

    # -- requests -----------------------------------------------------------------------------------------------------

    def gets(self, key: str = "", block: int | None = None) -> list[Request]:
        """The GETs of the object that the bucket got. `block`: those alone whose Range begins in it."""
        return [request for request in self.simulator.log() if is_get(request, key, block, self.block_bytes)]

    def wanted_bytes(self, key: str, block: int) -> int:
        """How many bytes of the block the bucket was asked for, in all."""
        return sum(stop - start for start, stop in map(extent_of, self.gets(key, block)))

    def asked(self, node: Node, key: str = "", by: Node | None = None) -> list[Request]:
        """The reads of the object that `by`, or any member, sent to `node`, except those of what is on its disk."""
        sender = "from=" if by is None else f"from={by.name};"
        reads = [request for request in self.links[node.name].log() if is_get(request, key)]
        sent = [(request, request.headers["x-outrider-peer"]) for request in reads]
        return [request for request, fields in sent if sender in fields and "only-if-here=0" in fields]

    def settle(self) -> None:
        for node in self.nodes.running:
            node.settle()

    @contextmanager
    def conditions(self, simulator: Simulator, *faults: Fault) -> Iterator[None]:
        """Faults that have not struck by the end of the block are removed."""
        simulator.conditions.faults = [*faults]
        try:
            yield
        finally:
            simulator.conditions.faults = []
            simulator.release()

    def calm(self) -> None:
        """As a test finds it: all members run and see each other, nothing is under way, and no request was counted."""
        for node in self.nodes.all:
            if node not in self.nodes.running:
                node.start()
        self.nodes.wait_for_all()
        self.settle()
        for simulator in (self.simulator, *self.links.values()):
            simulator.conditions.faults = []
            simulator.reset()


def is_get(request: Request, key: str = "", block: int | None = None, block_bytes: int = BLOCK) -> bool:
    if request.method != "GET" or request.query or not request.path.startswith(f"/{NAME}/{key}"):
        return False
    return block is None or extent_of(request)[0] // block_bytes == block


def extent_of(request: Request) -> tuple[int, int]:
    """The bytes that a GET with a Range asks for, half-open."""
    first, _, last = request.headers.get("range", "bytes=0-0").removeprefix("bytes=").partition("-")
    return int(first), int(last) + 1


def get(
    node: Node, key: str, extent: tuple[int, int] | None = None, keys: Keys = TENANT, method: str = "GET", /,
    **headers: str,
) -> Answer:  # fmt: skip
    """`extent`: half-open."""
    if extent is not None:
        headers["range"] = f"bytes={extent[0]}-{extent[1] - 1}"
    return answer_to(node, wire(node, keys, method, f"/{NAME}/{key}", headers.items()))


def body(node: Node, key: str, extent: tuple[int, int] | None = None) -> bytes:
    """The body of an answer that is no error, and is whole."""
    answer = get(node, key, extent)
    assert answer.status in (200, 206), answer
    return answer.body


def put(node: Node, stored: Stored, **headers: str) -> int:
    """Write the object through a node; returns the status."""
    return answer_to(node, wire(node, TENANT, "PUT", f"/{NAME}/{stored.key}", headers.items(), stored.data)).status


class Reading:
    """A GET whose body is read piece by piece. As a context: the client leaves at its end."""

    def __init__(self, node: Node, key: str) -> None:
        self._connection = RawConnection(node.address)
        self._connection.send(wire(node, TENANT, "GET", f"/{NAME}/{key}"))
        self._response = self._connection.read_head()
        assert self._response.status == 200
        self.data = bytearray()

    def read(self, count: int) -> None:
        """Read until `count` bytes are here, in all."""
        self.data += self._response.read(count - len(self.data))
        assert len(self.data) == count, "the body ended"

    def rest(self) -> bytes:
        """The whole body. Raises http.client.IncompleteRead, OSError: it was cut."""
        self.data += self._response.read()
        return bytes(self.data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def metrics_of(node: Node) -> list[str]:
    """The lines of its page of metrics."""
    host, _, port = node.admin.removeprefix("http://").rpartition(":")
    return ask((host, int(port)), "GET", "/metrics").body.decode().splitlines()


def total(lines: Sequence[str], name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    samples = [line for line in lines if line.partition(" ")[0].partition("{")[0] == name]
    return sum(float(line.rpartition(" ")[2]) for line in samples if all(label in line for label in wanted))


def metric(node: Node, name: str, **labels: str) -> float:
    return total(metrics_of(node), name, **labels)


def of_peer(node: Node, name: str, fact: str) -> Any:
    """A fact about the member `name`, as `node` sees it; None: it knows no such member."""
    return next((member[fact] for member in node.cluster["members"] if member["name"] == name), None)
