"""The last good list of members, in the form in which it is kept in the cache directory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from outrider.core.cluster.member import Member


def members_to_json(members: Iterable[Member]) -> dict[str, object]:
    return {"members": [{**asdict(member), "wire": list(member.wire)} for member in members]}


def members_from_json(kept: object) -> Iterable[Member]:
    """The members of a kept list, as it came out of JSON. An entry that cannot be understood is left out."""
    entries = kept.get("members") if isinstance(kept, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        match entry:
            case {
                "name": str(name),
                "address": str(address),
                "zone": str(zone),
                "weight_bytes": int(weight_bytes),
                "cluster_id": str(cluster_id),
                "wire": [int(lowest), int(highest)],
            } if name and address and weight_bytes >= 0:
                yield Member(name, address, zone, weight_bytes, cluster_id, (lowest, highest))
