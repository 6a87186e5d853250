"""The status document: the state of a running proxy as JSON-ready values, for the admin port's /status and, cut down to
what a client may know, for status.json of the control bucket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from outrider import __version__
from outrider.core.ahead.planner import Planner
from outrider.engine.fill.flight_table import FlightTable
from outrider.engine.maintenance.pinning import Pinning
from outrider.engine.maintenance.warmup import Book, Warmup
from outrider.engine.maintenance.warmup_runner import WarmupRunner
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.status.overview import Overview
from outrider.metrics import SOURCES, Metrics, ShownDisk
from outrider.settings import Settings

if TYPE_CHECKING:
    from outrider.engine.status.cluster_part import ClusterPart
    from outrider.engine.status.tenants_part import TenantsPart

# Settings that the document repeats.
_SETTINGS_SHOWN = ("auth", "policy", "prefetch", "freshness", "verify", "verify_origin", "block_size", "cache_dir")
# The document repeats at most this many failures of each warm-up and pin.
_FAILURES_SHOWN = 20
# Fields that any client may see. Addresses inside the cluster, and the place of the bucket, are no client's business.
_FOR_CLIENTS = (
    "version", "ready", "indexed", "blocks", "bytes", "objects", "fills", "requests", "served_bytes", "origin_bytes",
    "origin_requests", "prefetch", "hit_ratio_by_size", "uptime_s", "disk",
)  # fmt: skip


class ShownStore(Protocol):
    """The block store on disk. A Protocol, as an adapter implements it."""

    @property
    def disks(self) -> Sequence[ShownDisk]: ...

    @property
    def capacity_bytes(self) -> int: ...

    @property
    def used_bytes(self) -> int: ...

    @property
    def room_bytes(self) -> int: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Cache:
    """The parts of the cache whose sizes are shown."""

    store: ShownStore
    versions: VersionCache
    flights: FlightTable


@dataclass(frozen=True, slots=True)
class Maintenance:
    """The warm-ups and the pins."""

    runner: WarmupRunner
    warmups: Book
    pinning: Pinning

    def document(self, owner: str | None = None) -> dict[str, Any]:
        """`owner` None: those of all owners. A pin shows the bytes that it reserves and how many of them are on
        disk."""

        def of(book: Book) -> list[Warmup]:
            return book.all() if owner is None else book.of(owner)

        now = self.runner.clock()
        warmups = [self.runner.counted(warmup).report(now, _FAILURES_SHOWN) for warmup in of(self.warmups)]
        return {
            "warmups": warmups,
            "pins": [self.pinning.report(pin, _FAILURES_SHOWN) for pin in of(self.pinning.book)],
        }


class StatusDocument:
    """Called on the engine's thread."""

    def __init__(
        self, process: Callable[[], Mapping[str, Any]], settings: Settings, metrics: Metrics, cache: Cache,
        learned: Callable[[], Planner], overview: Overview, maintenance: Maintenance,
        cluster: ClusterPart | None = None, tenants: TenantsPart | None = None,
    ) -> None:  # fmt: skip
        """`process`: the fields about the process and its S3 port. `learned`: see `Prefetch.learned`. `cluster` None:
        the node is alone. `tenants` None: clients are not distinguished."""
        self._process = process
        self._settings = settings
        self._metrics = metrics
        self._cache = cache
        self._learned = learned
        self._overview = overview
        self._maintenance = maintenance
        self._cluster = cluster
        self._tenants = tenants

    def whole(self) -> dict[str, Any]:
        """For operators: the admin port shows it to those who have its token."""
        tenants = [] if self._tenants is None else self._tenants.document()
        return {**self._service(), **self._shown(), **self._maintenance.document(), "tenants": tenants}

    def for_client(self, owner: str) -> dict[str, Any]:
        """For the client with this access key (empty in loopback mode): its own warm-ups and pins, and the fields that
        any client may see. In loopback mode clients are not distinguished, so each of them sees all datasets, readers
        and members."""
        document = {name: value for name, value in self._service().items() if name in _FOR_CLIENTS}
        # Clients that keep what they read, such as a mount, need to know how long they may.
        document["freshness"] = self._settings.freshness
        if self._settings.auth == "loopback":
            document["freshness_rules"] = [[rule.objects, rule.freshness] for rule in self._settings.freshness_rules]
            document.update(self._shown())
        document.update(self._maintenance.document(owner))
        return document

    def _shown(self) -> dict[str, Any]:
        cluster = None if self._cluster is None else self._cluster.document()
        disks = [_disk(disk) for disk in self._cache.store.disks]
        states = None if cluster is None else cluster["states"]
        return {**self._overview.document(states, disks), "cluster": cluster, "disks": disks}

    def _service(self) -> dict[str, Any]:
        store, metrics, planner = self._cache.store, self._metrics, self._learned()
        return {
            "version": __version__,
            **self._process(),
            "origin": self._settings.origin,
            "settings": {name: _plain(getattr(self._settings, name)) for name in _SETTINGS_SHOWN},
            "disk": {
                "used_bytes": store.used_bytes,
                "budget_bytes": store.capacity_bytes,
                "room_bytes": store.room_bytes,
            },
            "blocks": len(store),
            "bytes": store.used_bytes,
            "objects": len(self._cache.versions),
            "fills": len(self._cache.flights),
            "served_bytes": {source: metrics.value("outrider_served_bytes_total", source=source) for source in SOURCES},
            "origin_bytes": metrics.value("outrider_origin_bytes_total"),
            "origin_requests": metrics.total("outrider_origin_requests_total"),
            "prefetch": {
                "readers": planner.readers,
                "blocks": metrics.value("outrider_prefetched_blocks_total"),
                "fetched_bytes": planner.fetched_bytes,
                "wasted_bytes": planner.wasted_bytes,
                "window_bytes": planner.outstanding.bytes,
                "window_blocks": planner.outstanding.blocks,
                "window_bytes_max": self._settings.prefetch_blocks * self._settings.block_size,
            },
            "hit_ratio_by_size": self._overview.hit_ratio_by_size(),
        }


def _disk(disk: ShownDisk) -> dict[str, Any]:
    state, error = disk.state
    return {
        "directory": disk.name, "state": state, "error": error, "blocks": disk.blocks,
        "used_bytes": disk.budget.used_bytes, "budget_bytes": disk.budget.capacity_bytes,
    }  # fmt: skip


def _plain(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else value
