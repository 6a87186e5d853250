"""The part of the status document for operators: datasets, readers, the bottleneck, rates, savings and recent
errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.dataset.templates import prefix_of
from outrider.core.ahead.planner import Planner
from outrider.core.insight.bottleneck import LargerCache, OriginWait, alerts, larger_cache
from outrider.core.insight.dataset_map import data_bytes, map_of
from outrider.core.insight.miss_ratio import FACTORS, MissRatioCurve
from outrider.core.insight.next_step import Data
from outrider.core.insight.rates import STEP_S, Rates
from outrider.core.insight.usage import (
    OTHERS,
    DatasetAccount,
    DatasetName,
    Prices,
    ReaderAccount,
    ReadUnderWay,
    Savings,
    Sums,
)
from outrider.core.model import ObjectRef
from outrider.engine.fill.content_verification import ContentVerification
from outrider.engine.status.verdicts import Verdicts
from outrider.metrics import Metrics
from outrider.origin_oddities import OriginOddities
from outrider.ports import Clock

# The datasets that were read last are shown in full. The map of each, 512 letters, is most of the document's length.
_DATASETS_SHOWN = 12
_READERS_SHOWN = 64
# A reader that was silent for this long pauses, or has ended.
SILENT_S = 20.0
# A reader that was silent for this long is not shown any more.
_READER_GONE_S = 600.0
_ERRORS_SHOWN = 20
# A shorter read under way says nothing that its end will not say.
_UNDER_WAY_S_MIN = 1.0
# An epoch is shown from this many objects on, or from all objects of a smaller dataset on.
_EPOCH_OBJECTS_MIN = 3


@dataclass(slots=True)
class _Row:
    """A dataset as `Usage` knows it, and as the planner knows it. `known` None: the planner does not. An empty account:
    it was never read."""

    name: DatasetName
    account: DatasetAccount
    known: Dataset | None


class Overview:
    """Called on the engine's thread. `tick` records the rates; `document` changes nothing, and takes some milliseconds
    at most, however many datasets and readers there are."""

    def __init__(
        self, metrics: Metrics, planner: Planner, miss_ratio: MissRatioCurve, prices: Prices, clock: Clock,
        verdicts: Verdicts, *,
        capacity_bytes: int, name_of: Callable[[str], str] = str, oddities: OriginOddities | None = None,
        origin_wait: Callable[[], OriginWait | None] = lambda: None, contents: ContentVerification | None = None,
    ) -> None:  # fmt: skip
        """`name_of`: a reader's name (see `http.access.reader_name`) as people may see it. `oddities` None: there
        are none."""
        self._verdicts = verdicts
        self._origin_wait = origin_wait
        self._contents = contents
        self._oddities = oddities or OriginOddities("", metrics)
        self._metrics = metrics
        self._usage = metrics.usage
        self._planner = planner
        self._miss_ratio = miss_ratio
        self._prices = prices
        self._clock = clock
        self._capacity_bytes = capacity_bytes
        self._name_of = name_of
        self._rates = Rates()
        self._last = clock() - STEP_S
        # Without this call, reads before the first tick would count as reads of long ago.
        self._usage.tick(clock())
        self._counted_fetched = self._counted_wasted = 0
        self._has_second_epoch = False
        metrics.before_scrape.append(self._update_metrics)

    def _update_metrics(self) -> None:
        datasets = self._planner.registry.items()
        held = ((name, dataset.kept_bytes) for name, dataset in datasets if dataset.kept_bytes > 0)
        self._metrics.usage_metrics.hold(held)
        ratios = self._hit_ratios()
        for factor in FACTORS:
            self._metrics.ghost_hit_ratio.labels(f"{factor:g}").set(ratios[factor] if ratios else float("nan"))
        fetched, wasted = self._planner.fetched_bytes, self._planner.wasted_bytes
        self._metrics.fetched_bytes.inc(fetched - self._counted_fetched)
        self._metrics.wasted_bytes.inc(wasted - self._counted_wasted)
        self._counted_fetched, self._counted_wasted = fetched, wasted

    def tick(self) -> None:
        """May be called as often as the caller likes: it acts about once in `STEP_S`."""
        now = self._clock()
        if now - self._last < STEP_S:
            return
        self._last = now
        traffic = self._metrics.traffic()
        self._usage.tick(now)
        self._verdicts.tick(now)
        self._rates.note(now, traffic)

    def hit_ratio_by_size(self) -> dict[str, float]:
        """The estimated hit ratio of a cache of so many times this one's size, by the miss-ratio curve; empty: nothing
        was read a second time yet."""
        return {f"{factor:g}": round(ratio, 4) for factor, ratio in (self._hit_ratios() or {}).items()}

    def _hit_ratios(self) -> dict[float, float] | None:
        """None before a second epoch: no cache hits in the first one, whatever its size."""
        # Kept: a job whose order becomes doubtful begins to count its epochs anew.
        self._has_second_epoch = self._has_second_epoch or self._is_read_again()
        return self._miss_ratio.epoch(self._planner.registry.outlook()) if self._has_second_epoch else None

    def _is_read_again(self) -> bool:
        has_others = False
        for dataset in self._planner.registry.datasets():
            epochs = dataset.epochs()
            # Two epochs of one job: it goes over the data again, whether or not the first one has ended.
            again = any(len(job.epochs) > 1 for job in dataset.jobs.values())
            if again or any(epoch.handle.number > 0 for epoch in epochs):
                return True
            has_others = has_others or not epochs
        # Reads at random form no epochs.
        return has_others and any((self._miss_ratio.lru() or {}).values())

    def _larger_cache(self, rows: Sequence[_Row]) -> LargerCache | None:
        again = sum(data_bytes(row.known) for row in rows if row.known is not None and row.known.epochs())
        return larger_cache(self._hit_ratios(), self._capacity_bytes, again)

    def verdict_on_all(self) -> Mapping[str, Any]:
        """On all reads since the start."""
        self._metrics.add_up()
        most = max(self._usage.readers(), key=lambda reader: reader[2].sums.wait_s, default=None)
        return self._verdicts.of_all(self._larger_cache(self._rows()), None if most is None else self._data(most[1]))

    def document(
        self, members: Mapping[str, int] | None = None, disks: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, Any]:
        """`members`: how many members of the cluster are in each state; None: the node is alone. `disks`: as the
        status document shows them."""
        self._metrics.add_up()
        rows = self._rows()
        larger = self._larger_cache(rows)
        readers, recent, most = self._readers(larger)
        saved = Savings.of(self._usage.total, self._prices)
        data = sum(data_bytes(row.known) for row in rows if row.known is not None)
        states = members or {}
        return {
            "verdict": {
                **self._verdicts.recent(recent, larger, most, self._origin_wait()),
                "alerts": alerts(
                    self._usage.failed_reads,
                    states.get("away", 0),
                    sum(states.values()),
                    [(disk["directory"], disk["error"]) for disk in disks],
                ),
            },
            "load": self._verdicts.load,
            "larger_cache": None if larger is None else asdict(larger),
            "throughput": {"step_s": STEP_S, **self._rates.rates()},
            "saved": _saved(saved, data, self._usage.total.sums),
            "prices": asdict(self._prices),
            "reads": _sums(self._usage.total.sums),
            "datasets": [self._dataset(row) for row in rows[:_DATASETS_SHOWN]],
            "datasets_known": len(rows),
            "readers": readers,
            "origin_oddities": self._oddities.document(),
            "uncached_reads": self._oddities.uncached_reads(),
            "errors": [asdict(error) for error in self._metrics.recent_errors.last()[:_ERRORS_SHOWN]],
        }

    # -- datasets -------------------------------------------------------------------------------------------------

    def _rows(self) -> list[_Row]:
        """Datasets in the order of their last read, the latest first. Datasets that were never read, such as those that
        only a LIST showed, come last."""
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
        dataset, sums = row.known, row.account.sums
        whole = 0 if dataset is None else data_bytes(dataset)
        facts: dict[str, Any] = {
            "bucket": bucket, "name": template, **_sums(sums), "bucket_gets": row.account.bucket_gets,
            "bucket_bytes": row.account.bucket_bytes,
            "saved": _saved(Savings.of(row.account, self._prices), whole, sums),
        }  # fmt: skip
        if dataset is None:
            return facts
        cached = dataset.kept_bytes
        names = len(dataset.names.keys)
        # One or two objects of many, read over and over, are no epoch to a person; nor are reads that the planner does
        # not trust to be an epoch.
        epochs = (epoch for epoch in dataset.epochs() if epoch.trusted and epoch.size >= min(_EPOCH_OBJECTS_MIN, names))
        newest = max(epochs, key=lambda epoch: epoch.last, default=None)
        silent_s = max(0.0, self._clock() - dataset.active_at) if dataset.active_at else None
        return {
            **facts,
            "objects": names,
            "all_known": _is_all_known(dataset),
            "bytes": whole,
            "cached_bytes": min(cached, whole),
            "cached": min(1.0, cached / whole) if whole else 0.0,
            **self._verified(dataset),
            "silent_s": silent_s,
            "epoch": None if newest is None else newest.number,
            "read_this_epoch": None if newest is None else len(newest.log),
            "epoch_objects": None if newest is None else newest.size,
            "order_known": newest is not None and newest.order_known,
            "order_of_a_seed": newest is not None and newest.order_known and newest.seed_state.draw is not None,
            "shards": map_of(dataset, lambda index: (dataset, index) in self._planner.outstanding),
        }

    def _verified(self, dataset: Dataset) -> dict[str, Any]:
        """The share of the bytes on disk that was compared with what the bucket knows of them, and why it is not all of
        them; None: it is."""
        cached, proved = dataset.kept_bytes, dataset.proved_bytes
        why = None
        if proved < cached:
            names = dataset.names.keys
            ref = ObjectRef(dataset.bucket, names[0]) if names else None
            if self._contents is None or not self._contents.on:
                why = "verify_origin is off"
            elif ref is not None and self._contents.questions.is_silent(ref):
                why = "the bucket states no checksum of whole objects"
            else:
                why = "not all blocks have come since the start, or the bucket states nothing that can be compared"
        return {"verified_bytes": proved, "verified": proved / cached if cached else 0.0, "unverified_because": why}

    # -- readers --------------------------------------------------------------------------------------------------

    def _readers(self, larger: LargerCache | None) -> tuple[list[dict[str, Any]], Sums, Data | None]:
        """The readers that were active lately, the sums of their latest requests, and the dataset that waits most."""
        under_way: dict[tuple[str, DatasetName], list[ReadUnderWay]] = {}
        for read in self._metrics.reads_under_way():
            if read.wait_s + read.away_s >= _UNDER_WAY_S_MIN:
                under_way.setdefault((read.reader, read.dataset), []).append(read)
        shown: list[dict[str, Any]] = []
        sums, most, most_s = Sums(), None, 0.0
        known = list(self._usage.readers())
        met = {(reader, dataset) for reader, dataset, *_ in known}
        # A reader whose first read has not ended has no account.
        known = [(*each, ReaderAccount(), 0.0) for each in under_way if each not in met] + known
        has_active = any(silent_s <= SILENT_S for *_, silent_s in known) or bool(under_way)
        for reader, dataset, account, silent_s in known:
            reads = under_way.get((reader, dataset), [])
            recent = replace(account.recent)
            recent.add(account.fresh)
            for read in reads:
                recent.add(read.recent())
            # A job that has ended does not outshout one that reads now.
            if silent_s <= SILENT_S or reads or not has_active:
                sums.add(recent)
                if recent.wait_s > most_s:
                    most, most_s = dataset, recent.wait_s
            if (silent_s > _READER_GONE_S and not reads) or len(shown) >= _READERS_SHOWN:
                continue
            waits_for = self._origin_wait() if any(read.is_waiting and not read.is_hit for read in reads) else None
            verdict = self._verdicts.recent(recent, larger, self._data(dataset), waits_for)
            shown.append({
                "name": self._name_of(reader), "bucket": dataset[0], "dataset": dataset[1],
                "silent_s": round(silent_s, 1), "reads_under_way": len(reads),
                "waiting_s": max((round(read.wait_s, 1) for read in reads if read.is_waiting), default=None),
                "bytes_s": round(account.bytes_s), **_sums(account.sums),
                "stall": None if recent.stall is None else round(recent.stall, 4),
                "slow": verdict["slow"], "level": verdict["level"], "verdict": verdict["text"], "next": verdict["next"],
            })  # fmt: skip
        return shown, sums, None if most is None else self._data(most)

    def _data(self, name: DatasetName) -> Data | None:
        bucket, template = name
        if name == OTHERS:
            return None
        prefix = prefix_of(template)
        url = f"s3://{bucket}/{prefix[: prefix.rfind('/') + 1]}"
        dataset = self._planner.registry.find(name)
        if dataset is None:
            return Data(url)
        whole = data_bytes(dataset)
        return Data(
            url, whole, any(epoch.order_known for epoch in dataset.epochs()),
            is_cached=_is_all_known(dataset) and dataset.kept_bytes >= whole > 0,
        )  # fmt: skip


def _is_all_known(dataset: Dataset) -> bool:
    """Whether all names of the dataset are known; else more may come to light with each read."""
    is_announced = any(epoch.announced for epoch in dataset.epochs())
    return is_announced or (dataset.discovery.is_whole and not dataset.discovery.too_many_names)


def _sums(sums: Sums) -> Mapping[str, Any]:
    return {
        "requests": sums.requests, "hits": sums.hits,
        "served_bytes": {"disk": sums.disk_bytes, "flight": sums.flight_bytes, "origin": sums.origin_bytes},
        "wait_s": round(sums.wait_s, 3), "away_s": round(sums.away_s, 3),
    }  # fmt: skip


def _saved(saved: Savings, whole_bytes: int, sums: Sums) -> Mapping[str, Any]:
    return {**asdict(saved), "spent": saved.spent(whole_bytes, are_read=sums.requests > 0)}
