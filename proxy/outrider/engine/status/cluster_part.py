"""The part of the status document for the cluster: the members as this node sees them, and what came from each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from prometheus_client import Counter

from outrider.core.cluster.messages import Hello
from outrider.core.cluster.peer_health import PeerHealth, PeersHealth
from outrider.core.cluster.view import MemberState, View
from outrider.metrics import Metrics
from outrider.ports import Clock

STATES = ("alive", "away", "left_out")
"""A member that is alive would be asked now. One that is away does not answer, or is not ready. One that is left out
answers, and is not asked: it does not fit, is too slow, or fails."""

# Answers that are no sign of a fault: the member did not have the bytes, or was busy.
_NO_FAULT = frozenset(("absent", "busy", "changed"))


class SeenMembers(Protocol):
    """The members, and what was seen of them."""

    @property
    def view(self) -> View: ...

    @property
    def health(self) -> PeersHealth: ...

    def mine(self) -> Hello:
        """This node's account of itself."""
        ...


class ClusterPart:
    """Called on the engine's thread. `near`: how many blocks are here that other members own, and their bytes."""

    def __init__(
        self, members: SeenMembers, metrics: Metrics, clock: Clock, *, source: str, domain: str,
        near: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:  # fmt: skip
        self._members = members
        self._metrics = metrics
        self._clock = clock
        self._source = source
        self._domain = domain
        self._near = near
        metrics.before_scrape.append(self._update_metrics)

    def document(self) -> dict[str, Any]:
        """The members are ordered by name, this node among them."""
        view, mine = self._members.view, self._members.mine()
        blocks, near_bytes = self._near()
        me: dict[str, Any] = {
            **_blank(view.me.name, view.me.address, "alive"), "zone": view.me.zone,
            "weight_bytes": view.me.weight_bytes, "ring": view.ring.digest, "is_leaving": mine.is_leaving,
            "is_me": True, "in_ring": True,
        }  # fmt: skip
        members = sorted([me, *self._others()], key=lambda member: (member["name"], member["address"]))
        return {
            "name": view.me.name,
            "zone": view.me.zone,
            "address": view.me.address,
            "source": self._source,
            "domain": self._domain,
            "ring": view.ring.digest,
            "boot": mine.boot,
            "cluster_id": view.me.cluster_id,
            "is_listed": view.is_listed,
            "is_leaving": mine.is_leaving,
            "names_used_twice": {name: list(at) for name, at in sorted(view.names_used_twice.items())},
            "members": members,
            "states": {state: sum(member["state"] == state for member in members) for state in STATES},
            "ring_disagreements": int(_by_labels(self._metrics.peers.ring_disagreements).get((), 0)),
            "duplicate_fetches": {
                why: int(count) for (why,), count in sorted(_by_labels(self._metrics.peers.duplicate_fetches).items())
            },
            "near_blocks": blocks,
            "near_bytes": near_bytes,
        }

    def _others(self) -> list[dict[str, Any]]:
        view, now = self._members.view, self._clock()
        traffic = _Traffic(self._metrics)
        members = [self._of(state, now, traffic) for state in view.states]
        members += [
            {**_blank(left.name, left.address, "left_out"), "why": f"{left.why}: {left.detail}"}
            for left in view.left_out
        ]
        members += [
            {**_blank(entry.name, entry.address, "away"), "zone": entry.zone, "weight_bytes": entry.weight_bytes,
             "why": "never answered"}
            for entry in view.silent
        ]  # fmt: skip
        return members

    def _of(self, known: MemberState, now: float, traffic: _Traffic) -> dict[str, Any]:
        member = known.member
        health = self._members.health.of(member.name)
        state, why = _state(known, health, now)
        return {
            **_blank(member.name, member.address, state),
            "zone": member.zone,
            "weight_bytes": member.weight_bytes,
            "since_s": None if known.away_since is None else round(now - known.away_since, 1),
            "why": why,
            "ring": known.ring,
            "is_listed": known.is_listed,
            "is_leaving": known.is_leaving,
            "in_ring": known.in_ring,
            "skew_s": round(known.skew_s, 3),
            **traffic.of(member.name),
            "failures": sum(count for reason, count in health.failures.items() if reason not in _NO_FAULT),
            "failures_by_why": dict(sorted(health.failures.items())),
            "latency_s": {"p50": health.first_byte_s(0.5), "p99": health.first_byte_s(0.99)},
            "breaker": "open" if health.fails(now) else "closed",
        }

    def _update_metrics(self) -> None:
        states = [member["state"] for member in self._others()]
        for state in STATES:
            self._metrics.peers.members.labels(state).set(states.count(state))


class _Traffic:
    """The counters by member. SeenMembers that share a label, beyond the first 64, have none of their own."""

    def __init__(self, metrics: Metrics) -> None:
        self._peers = metrics.peers
        self._bytes = _by_labels(metrics.peers.bytes)
        self._requests: dict[str, float] = {}
        for (peer, _), count in _by_labels(metrics.peers.requests).items():
            self._requests[peer] = self._requests.get(peer, 0.0) + count

    def of(self, name: str) -> dict[str, int | None]:
        if self._peers.label(name) != name:
            return {"bytes_in": None, "bytes_out": None, "requests": None}
        return {
            "bytes_in": int(self._bytes.get((name, "in"), 0)),
            "bytes_out": int(self._bytes.get((name, "out"), 0)),
            "requests": int(self._requests.get(name, 0)),
        }


def _state(known: MemberState, health: PeerHealth, now: float) -> tuple[str, str]:
    """The state of a member, and the reason for it."""
    if not known.is_alive:
        return "away", "" if known.is_listed else "not listed"
    if health.fails(now):
        return "left_out", "its reads fail"
    if health.is_left_out(now):
        return "left_out", "slower than the bucket"
    return "alive", "" if known.is_listed else "not listed"


def _blank(name: str, address: str, state: str) -> dict[str, Any]:
    """A member of which nothing else is known."""
    return {
        "name": name, "address": address, "zone": "", "weight_bytes": 0, "state": state, "since_s": None, "why": "",
        "ring": "", "is_me": False, "is_listed": True, "is_leaving": False, "in_ring": False, "skew_s": 0.0,
        "bytes_in": 0, "bytes_out": 0, "requests": 0, "failures": 0, "failures_by_why": {},
        "latency_s": {"p50": None, "p99": None}, "breaker": "closed",
    }  # fmt: skip


def _by_labels(counter: Counter) -> Mapping[tuple[str, ...], float]:
    """The values of a counter by the values of its labels."""
    samples: Iterable[Any] = (sample for family in counter.collect() for sample in family.samples)
    return {tuple(sample.labels.values()): sample.value for sample in samples if sample.name.endswith("_total")}
