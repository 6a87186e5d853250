"""A member of the cluster, and what the members tell each other of themselves."""

from __future__ import annotations

from dataclasses import dataclass

WIRE_VERSIONS = (1, 1)
"""The lowest and the highest version of the wire that this code speaks."""


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry of a list of members. `address`: `HOST:PORT` of its peer port. The other fields are empty, or 0, where
    the source of members does not tell them; a hello does then."""

    address: str
    name: str = ""
    zone: str = ""
    weight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """`name`: of the node, or of the pod of a sidecar; it stays when the address changes. `weight_bytes`: the size of
    its cache. `cluster_id`: a hash of all that makes blocks the same; members with another one are left out."""

    name: str
    address: str
    zone: str
    weight_bytes: int
    cluster_id: str
    wire: tuple[int, int] = WIRE_VERSIONS


@dataclass(frozen=True, slots=True)
class Hello:
    """A member's account of itself, asked for at regular intervals. `boot`: nanoseconds since 1970 at which its process
    began; a later process has a larger one. `ring`: the digest of its ring. `forgets`: the number of the last forget
    that it sent. `clock_s`: its time, in seconds since 1970. `is_leaving`: it is about to stop, and owns nothing new.
    `is_ready`: its index has been read."""

    member: Member
    boot: int
    ring: str
    forgets: int
    clock_s: float
    is_ready: bool = True
    is_leaving: bool = False
