"""A member of the cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from outrider.core.cluster.wire_forms import Name, Number, Word

WIRE_VERSIONS = (1, 2)
"""The lowest and the highest version of the wire that this code speaks."""


@dataclass(frozen=True, slots=True)
class ListedMember:
    """An entry of a list of members. `address`: `HOST:PORT` of its peer port. The other fields are empty, or 0, where
    the source of members does not state them; a hello does then."""

    address: str
    name: str = ""
    zone: str = ""
    weight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """`name`: of the node, or of the pod of a sidecar; it stays when the address changes. `weight_bytes`: the size of
    its cache. `cluster_id`: a hash of all that makes blocks the same; members with another one are left out."""

    name: Name
    address: Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9._:%\[\]-]{1,255}:[0-9]{1,5}$")]
    zone: Word
    weight_bytes: Annotated[Number, Field(alias="weight")]
    cluster_id: Annotated[Word, Field(alias="cluster")]
    wire: tuple[Number, Number] = WIRE_VERSIONS

    def completed(self, entry: ListedMember | None) -> Member:
        """With the zone of its `entry` in the list where it names none, for itself and for all others. A weight in the
        list comes before the size of the member's cache: whoever writes one means it."""
        if entry is None:
            return self
        return replace(self, zone=self.zone or entry.zone, weight_bytes=entry.weight_bytes or self.weight_bytes)
