"""The list of members that is believed: a source that lost most of them at once is doubted for a while."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from outrider.core.cluster.member import ListedMember, Member

DOUBT_S = 60.0
"""A list that is empty, or lost more than half of its members at once, is not believed before so long: more often than
a cluster ends, a DNS server or an API server is broken."""


class BelievedList:
    """`entries`: each address once. While a list is doubted, its new members are among them already, and its missing
    ones still. `restored`: the list of an earlier process."""

    def __init__(self, restored: Iterable[ListedMember] = ()) -> None:
        self._believed = _unique(restored)
        self._latest = self._believed
        self._doubted_at: float | None = None
        self.has_come = False
        """The source gave a list."""
        self._show(self._believed)

    @property
    def is_doubted(self) -> bool:
        return self._doubted_at is not None

    def listed(self, entries: Iterable[ListedMember], now: float) -> None:
        """The list of now."""
        self.has_come = True
        self._latest = _unique(entries)
        lost = self._lost()
        if 2 * len(lost) <= len(self._believed):
            self._believe()
            return
        if self._doubted_at is None:
            self._doubted_at = now
        self._show([*self._latest, *lost])
        self.passed(now)

    def passed(self, now: float) -> None:
        """Time passed."""
        if self._doubted_at is not None and now - self._doubted_at >= DOUBT_S:
            self._believe()

    def at(self, address: str) -> ListedMember | None:
        return self._by_address.get(address)

    def entry_of(self, address: str, name: str) -> ListedMember | None:
        """The entry of a member that answers at `address`; None: it is not listed. An entry without a name is that of
        any member at its address."""
        entry = self._by_address.get(address)
        return entry if entry is not None and entry.name in ("", name) else self._by_name.get(name)

    def _lost(self) -> Sequence[ListedMember]:
        addresses = {entry.address for entry in self._latest}
        names = {entry.name for entry in self._latest if entry.name}
        return [entry for entry in self._believed if entry.address not in addresses and entry.name not in names]

    def _believe(self) -> None:
        self._believed, self._doubted_at = self._latest, None
        self._show(self._believed)

    def _show(self, entries: Sequence[ListedMember]) -> None:
        self.entries = entries
        self._by_address = {entry.address: entry for entry in entries}
        self._by_name = {entry.name: entry for entry in entries if entry.name}


def _unique(entries: Iterable[ListedMember]) -> Sequence[ListedMember]:
    """Each address once; of two entries, the first one that has a name."""
    found: dict[str, ListedMember] = {}
    for entry in entries:
        if entry.address not in found or (entry.name and not found[entry.address].name):
            found[entry.address] = entry
    return list(found.values())


def members_to_json(members: Iterable[Member]) -> dict[str, object]:
    """The last good list, in the form in which it is kept in the cache directory."""
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
