"""What an operator sees: the part of the status document that tells of datasets, readers, stalls and money."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.planner import Planner
from outrider.core.insight.bottleneck import LargerCache, bottleneck_of, larger_cache
from outrider.core.insight.dataset_map import data_bytes, shard_map
from outrider.core.insight.miss_ratio import FACTORS, MissRatioCurve
from outrider.core.insight.rates import STEP_S, Rates
from outrider.core.insight.recent_errors import RecentErrors
from outrider.core.insight.usage import OTHERS, DatasetAccount, DatasetName, Prices, Saved, Sums, Usage
from outrider.metrics import Metrics
from outrider.ports import Clock

# Told in full: those that were read last. A map of 512 letters each is what makes the document long.
_DATASETS_TOLD = 12
_READERS_TOLD = 64
# A reader that was silent for so long is not told of any more.
_READER_GONE_S = 600.0
_TROUBLES_TOLD = 20
# Objects of a pass that is told of, where the dataset has as many.
_EPOCH_MIN = 3


@dataclass(slots=True)
class _Row:
    """A dataset: what the ledger has of it, and what the planner has; either may be missing."""

    name: DatasetName
    account: DatasetAccount
    known: Dataset | None


class Overview:
    """Called on the engine's thread. `tick` keeps the time line; `document` looks, and costs some milliseconds at
    most however much there is."""

    def __init__(
        self, metrics: Metrics, usage: Usage, planner: Planner, miss_ratio: MissRatioCurve,
        recent_errors: RecentErrors, prices: Prices,
        clock: Clock, *, capacity_bytes: int, name_of: Callable[[str], str] = str,
    ) -> None:  # fmt: skip
        """`name_of`: of a reader (see `http.access.reader_name`), what may be shown."""
        self._metrics = metrics
        self._usage = usage
        self._planner = planner
        self._miss_ratio = miss_ratio
        self._recent_errors = recent_errors
        self._prices = prices
        self._clock = clock
        self._capacity_bytes = capacity_bytes
        self._name_of = name_of
        self._timeline = Rates()
        self._last = clock() - STEP_S
        # So that what is read before the first tick is not from long ago.
        usage.passed(clock())
        self._told_fetched = self._told_wasted = 0
        metrics.before_telling.append(self._tell_gauges)

    def _tell_gauges(self) -> None:
        ratios = self._miss_ratio.epoch(self._planner.registry.outlook())
        for factor in FACTORS:
            self._metrics.ghost_hit_ratio.labels(f"{factor:g}").set(ratios[factor] if ratios else float("nan"))
        fetched, wasted = self._planner.fetched_bytes, self._planner.wasted_bytes
        self._metrics.fetched_bytes.inc(fetched - self._told_fetched)
        self._metrics.wasted_bytes.inc(wasted - self._told_wasted)
        self._told_fetched, self._told_wasted = fetched, wasted

    def tick(self) -> None:
        """As often as one likes: acts about once in `STEP_S`."""
        now = self._clock()
        if now - self._last < STEP_S:
            return
        self._last = now
        traffic = self._metrics.traffic()
        self._usage.passed(now)
        self._timeline.note(now, traffic)

    def document(self) -> dict[str, Any]:
        self._metrics.add_up()
        ratios = self._miss_ratio.epoch(self._planner.registry.outlook())
        rows = self._rows()
        again = sum(data_bytes(row.known) for row in rows if row.known is not None and row.known.epochs())
        larger = larger_cache(ratios, self._capacity_bytes, again)
        readers, recent = self._readers(larger)
        saved = Saved.of(self._usage.total, self._prices)
        return {
            "verdict": asdict(bottleneck_of(recent, larger)),
            "larger_cache": None if larger is None else asdict(larger),
            "throughput": {"step_s": STEP_S, **self._timeline.rates()},
            "saved": asdict(saved),
            "prices": asdict(self._prices),
            "reads": _told(self._usage.total.sums),
            "datasets": [self._dataset(row) for row in rows[:_DATASETS_TOLD]],
            "datasets_known": len(rows),
            "readers": readers,
            "errors": [asdict(one) for one in self._recent_errors.last()[:_TROUBLES_TOLD]],
        }

    # -- datasets -------------------------------------------------------------------------------------------------

    def _rows(self) -> list[_Row]:
        """The latest read first; what was never read, such as what a LIST brought in passing, last."""
        rows: dict[DatasetName, _Row] = {}
        accounts = self._usage.datasets()
        for name, dataset in self._planner.registry.items():
            if name in accounts or dataset.cached:
                rows[name] = _Row(name, accounts.get(name) or DatasetAccount(), dataset)
        for name, account in accounts.items():
            rows.setdefault(name, _Row(name, account, None))
        ordered = sorted(rows.values(), key=lambda row: (row.account.at, row.account.sums.served_bytes), reverse=True)
        return sorted(ordered, key=lambda row: row.name == OTHERS)

    def _dataset(self, row: _Row) -> dict[str, Any]:
        bucket, template = row.name
        told: dict[str, Any] = {
            "bucket": bucket, "name": template, **_told(row.account.sums), "bucket_gets": row.account.asked,
            "bucket_bytes": row.account.came_bytes, "saved": asdict(Saved.of(row.account, self._prices)),
        }  # fmt: skip
        dataset = row.known
        if dataset is None:
            return told
        whole, here = data_bytes(dataset), dataset.kept_bytes
        names = len(dataset.names.keys)
        # An object or two of many, read over and over, are an epoch to nobody; nor is what may be no pass at all.
        epochs = (one for one in dataset.epochs() if one.trusted and one.size >= min(_EPOCH_MIN, names))
        newest = max(epochs, key=lambda one: one.last, default=None)
        silent_s = max(0.0, self._clock() - dataset.active_at) if dataset.active_at else None
        return {
            **told,
            "objects": names,
            "bytes": whole,
            "cached_bytes": min(here, whole),
            "cached": min(1.0, here / whole) if whole else 0.0,
            "silent_s": silent_s,
            "epoch": None if newest is None else newest.number,
            "read_this_epoch": None if newest is None else len(newest.log),
            "epoch_objects": None if newest is None else newest.size,
            "order_known": newest is not None and newest.order_known,
            "order_of_a_seed": newest is not None and newest.order_known and newest.draw is not None,
            "shards": shard_map(dataset, lambda key: self._planner.is_coming(dataset, key)),
        }

    # -- readers --------------------------------------------------------------------------------------------------

    def _readers(self, larger: LargerCache | None) -> tuple[list[dict[str, Any]], Sums]:
        """The readers of late, and the sums of all that they did of late."""
        told: list[dict[str, Any]] = []
        shared_epoch = Sums()
        for reader, (bucket, template), account, silent_s in self._usage.readers():
            recent = replace(account.recent)
            recent.add(account.fresh)
            shared_epoch.add(recent)
            if silent_s > _READER_GONE_S or len(told) >= _READERS_TOLD:
                continue
            verdict = bottleneck_of(recent, larger)
            told.append({
                "name": self._name_of(reader), "bucket": bucket, "dataset": template, "silent_s": round(silent_s, 1),
                "bytes_s": round(account.bytes_s), "stall": _rounded(recent.stall), **_told(account.sums),
                "slow": verdict.slow, "verdict": verdict.text,
            })  # fmt: skip
        return told, shared_epoch


def _told(sums: Sums) -> Mapping[str, Any]:
    return {
        "requests": sums.requests, "hits": sums.hits,
        "served_bytes": {"disk": sums.disk_bytes, "flight": sums.flight_bytes, "origin": sums.origin_bytes},
        "wait_s": round(sums.wait_s, 3), "away_s": round(sums.away_s, 3),
    }  # fmt: skip


def _rounded(part: float | None) -> float | None:
    return None if part is None else round(part, 4)
