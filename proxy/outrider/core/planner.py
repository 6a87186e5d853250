"""What will be read next, what is worth fetching now, and what may go: facts in, decisions out."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge

from sortedcontainers import SortedList

from outrider.core.epochs import Pass, number_of, template_of
from outrider.core.model import BlockKey, Extent, ObjectRef, ObjectVersion
from outrider.core.streams import Streams

_EPS = 0.01


@dataclass(frozen=True, slots=True)
class Want:
    """Fill what is missing of an object. `size` -1: unknown, so begin at the front and look."""

    ref: ObjectRef
    size: int
    blocks: tuple[int, ...]
    due_s: float


@dataclass(slots=True)
class Kept:
    """What is here of one object."""

    dataset: Dataset
    key: int
    version_id: bytes
    size: int
    used_at: float
    present: int = 0
    served: int = 0
    rank: float = 0.0
    unread: bool = True
    reading: int = 0


class Dataset:
    def __init__(self, bucket: str, template: str) -> None:
        self.bucket = bucket
        self.template = template
        self.keys: list[str] = []
        self.index: dict[str, int] = {}
        self.sizes: array[int] = array("q")
        self.jobs: dict[str, Job] = {}
        self.kept: dict[int, Kept] = {}
        self.ranked: SortedList = SortedList()
        self.recent: OrderedDict[int, None] = OrderedDict()
        self.clock = 0.0
        self.listed = False
        self.asked_list = False

    def number(self, key: str) -> int:
        k = self.index.get(key)
        if k is None:
            k = self.index[key] = len(self.keys)
            self.keys.append(key)
            self.sizes.append(-1)
            for job in self.jobs.values():
                for p in job.passes:
                    p.grow(len(self.keys))
        return k

    def passes(self) -> list[Pass]:
        return [p for job in self.jobs.values() for p in job.passes if not job.free]


class Job:
    """What one client does with one dataset."""

    def __init__(self, client: str) -> None:
        self.client = client
        self.passes: list[Pass] = []
        self.free = False
        self.readers = 1
        self.last = 0.0
        self.repeats = 0
        self.expected_repeats = 0.0
        self.thirds = 0


class Planner:
    def __init__(self, capacity_bytes: int, block_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.block_bytes = block_bytes
        self.now = 0.0
        self._datasets: dict[tuple[str, str], Dataset] = {}
        self._kept: dict[bytes, Kept] = {}
        self._streams = Streams()
        self._out: dict[tuple[Dataset, int], tuple[int, float]] = {}  # missing blocks handed out
        self._opening: OrderedDict[tuple[str, int, Dataset], float] = OrderedDict()
        self.wasted_bytes = 0

    # -- facts ----------------------------------------------------------------------------------------------
    def dataset_of(self, ref: ObjectRef) -> Dataset:
        name = (ref.bucket, template_of(ref.key))
        d = self._datasets.get(name)
        if d is None:
            d = self._datasets[name] = Dataset(*name)
        return d

    def asked(self, client: str, ref: ObjectRef, size: int, extent: Extent, now: float) -> Extent | None:
        self.now = now
        d = self.dataset_of(ref)
        k = d.number(ref.key)
        d.sizes[k] = size
        asked = self._streams.asked(client, hash((ref.bucket, ref.key)), size, extent, now)
        if asked.opened:
            self._opened(d, k, client, now)
        return asked.ahead

    def _opened(self, d: Dataset, k: int, client: str, now: float) -> None:
        job = d.jobs.get(client)
        if job is None:
            job = d.jobs[client] = Job(client)
            agenda = array("i", range(len(d.keys))) if d.listed else array("i")
            job.passes.append(Pass(client, agenda, len(d.keys), now, 0.2))
        job.last = now
        p = self._pass_for(d, job, k, now)
        kept = d.kept.get(k)
        if p is not None:
            p.read(k, now)
            n = max(1, len(d.passes()))
            d.clock += 1.0 / (p.size * n)
            if p.agenda and p.left == 0 and p is job.passes[0]:
                p.begin_next(now)
        if kept is not None:
            kept.unread = False
            kept.served = 0
            kept.used_at = now
            kept.reading += 1
            d.recent.move_to_end(k)
            self._rank(kept)

    def _pass_for(self, d: Dataset, job: Job, k: int, now: float) -> Pass | None:
        free = [p for p in job.passes if p.unread(k)]
        if free:
            if len(free) > 1:
                fitting = [p for p in free if p.order_known and p.fits(k)]
                return (fitting or free)[0]
            return free[0]
        p = job.passes[0]
        # crude: a new pass
        p.begin_next(now)
        return p

    def listed(self, bucket: str, entries: Sequence[tuple[str, int]], now: float) -> None:
        touched = set()
        for key, size in entries:
            d = self.dataset_of(ObjectRef(bucket, key))
            k = d.number(key)
            d.sizes[k] = size
            d.listed = True
            touched.add(d)
        for d in touched:
            for job in d.jobs.values():
                for p in job.passes:
                    if p.number == 0:
                        p.expect(range(len(d.keys)))

    def told(self, client: str, refs: Sequence[ObjectRef], start: int, total: int, now: float) -> None:
        self.now = now
        d = self.dataset_of(refs[0])
        ks = [d.number(r.key) for r in refs]
        job = d.jobs.get(client)
        if job is None:
            job = d.jobs[client] = Job(client)
            job.passes.append(Pass(client, array("i"), len(d.keys), now, 0.2))
            job.last = now
        p = job.passes[0]
        p.tell(ks, start, total)
        for kept in d.kept.values():
            self._rank(kept)

    def please_list(self) -> list[tuple[str, str]]:
        out = []
        for d in self._datasets.values():
            if not d.asked_list and not d.listed and len(d.keys) >= 3:
                d.asked_list = True
                out.append((d.bucket, d.template.partition("{}")[0]))
        return out

    def added(self, block: BlockKey, version: ObjectVersion) -> None:
        kept = self._kept.get(block.version_id)
        if kept is None:
            d = self.dataset_of(version.ref)
            k = d.number(version.ref.key)
            d.sizes[k] = version.size
            kept = Kept(d, k, block.version_id, version.size, self.now)
            kept.unread = (d, k) in self._out
            if not kept.unread:
                kept.reading = 1
            self._kept[block.version_id] = kept
            d.kept[k] = kept
            kept.rank = self._score_clock(kept)
            d.ranked.add((kept.rank, k))
            d.recent[k] = None
            if kept.unread:
                d.recent.move_to_end(k, last=False)
        kept.present |= 1 << block.index
        self._not_out(kept.dataset, kept.key, block.index)

    def _not_out(self, d: Dataset, k: int, index: int) -> None:
        out = self._out.get((d, k))
        if out is not None:
            mask = out[0] & ~(1 << index)
            if mask:
                self._out[d, k] = (mask, out[1])
            else:
                del self._out[d, k]

    def dropped(self, ref: ObjectRef) -> None:
        d = self.dataset_of(ref)
        k = d.index[ref.key]
        if self._out.pop((d, k), None):
            self._again(d, k)

    def _again(self, d: Dataset, k: int) -> None:
        for p in d.passes():
            if p.unread(k) and p.place[k] >= 0 and p.place[k] < p.cursor:
                p.again.append(k)

    def read(self, block: BlockKey) -> None:
        kept = self._kept.get(block.version_id)
        if kept is None:
            return
        kept.served |= 1 << block.index
        kept.unread = False
        if kept.served.bit_count() >= -(-kept.size // self.block_bytes):
            kept.reading = 0

    def removed(self, block: BlockKey) -> None:
        kept = self._kept.get(block.version_id)
        if kept is None:
            return
        kept.present &= ~(1 << block.index)
        d = kept.dataset
        if kept.unread:
            self.wasted_bytes += self.block_bytes
            self._again(d, kept.key)
        if not kept.present:
            del self._kept[block.version_id]
            del d.kept[kept.key]
            d.ranked.remove((kept.rank, kept.key))
            d.recent.pop(kept.key, None)

    def _until(self, d: Dataset, k: int) -> float:
        """Passes."""
        best = 9.0
        for p in d.passes():
            best = min(best, p.until(k) + 4 * max(0.0, self.now - p.last - 1) / p.seconds_per_pass(self.now))
        return best

    def _score_clock(self, kept: Kept) -> float:
        return kept.dataset.clock + self._until(kept.dataset, kept.key)

    def _rank(self, kept: Kept) -> None:
        d = kept.dataset
        d.ranked.remove((kept.rank, kept.key))
        kept.rank = self._score_clock(kept)
        d.ranked.add((kept.rank, kept.key))

    def _period(self, d: Dataset) -> float:
        return max((p.seconds_per_pass(self.now) for p in d.passes()), default=1.0)

    def _candidates(self, d: Dataset) -> Iterator[tuple[float, Kept]]:
        ps = d.passes()
        if not ps:
            for k in d.recent:
                kept = d.kept[k]
                yield -(self.now - kept.used_at), kept
        else:
            period = self._period(d)
            for _, k in reversed(d.ranked):
                yield -self._until(d, k) * period, d.kept[k]

    def victims(self, incoming: BlockKey | None = None) -> Iterator[BlockKey]:
        kept_in = None
        limit = -1.0
        if incoming is not None:
            for (d, k), (mask, _) in self._out.items():
                pass
        yield from self._victims(self._limits.get(incoming.version_id, 0.0) if incoming else 0.0)

    _limits: dict = {}

    def _victims(self, limit_s: float) -> Iterator[BlockKey]:
        """Those whose next use is farther away than limit_s seconds."""
        for score, kept in merge(*(self._candidates(d) for d in self._datasets.values() if d.kept), key=lambda x: x[0]):
            if -score <= limit_s:
                return
            mask = kept.present
            if kept.reading:
                mask &= kept.served
            while mask:
                i = mask.bit_length() - 1
                mask &= ~(1 << i)
                yield BlockKey(kept.version_id, i)

    # -- decisions ------------------------------------------------------------------------------------------
    def wants(self, now: float, free_bytes: int, blocks: int) -> list[Want]:
        self.now = now
        wants: list[Want] = []
        for d in self._datasets.values():
            for p in d.passes():
                if now - p.last > max(1.0, 20 * p.gap_s):
                    continue
                blocks -= self._from_pass(d, p, wants, free_bytes, blocks)
        return wants

    def _from_pass(self, d: Dataset, p: Pass, wants: list[Want], free_bytes: int, blocks: int) -> int:
        used = 0
        readers = sum(1 for kept in d.kept.values() if kept.reading)
        need = (sum(m.bit_count() for m, _ in self._out.values()) + 0) * self.block_bytes
        period = self._period(d)
        while used < blocks:
            src = None
            if p.again:
                k = p.again[0]
                src = "again"
            elif p.cursor < len(p.agenda):
                k = p.agenda[p.cursor]
                src = "agenda"
            elif p.cursor - len(p.agenda) < len(p.log) and p.left < 2 * 8 + 8:
                k = p.log[p.cursor - len(p.agenda)]
                src = "next"
            else:
                break
            skip = (src != "next" and not p.unread(k)) or (d, k) in self._out
            kept = d.kept.get(k)
            count = max(1, -(-d.sizes[k] // self.block_bytes))
            full = (1 << count) - 1
            missing = full & ~(kept.present if kept else 0)
            if not missing or (kept is not None and kept.reading):
                skip = True
            if not skip:
                until = p.until(k)
                if p.order_known and until * p.size > 2 * self.readers + 8:
                    break
                size = missing.bit_count() * self.block_bytes
                reserve = self.reserve
                if not self._room(free_bytes, need + size + reserve, until * period * 1.02 + _EPS * period):
                    break
                need += size
                used += missing.bit_count()
                self._out[d, k] = (missing, until * period)
                wants.append(Want(ObjectRef(d.bucket, d.keys[k]), d.sizes[k],
                                  tuple(i for i in range(count) if missing >> i & 1), until * period))
            if src == "again":
                p.again.popleft()
            else:
                p.cursor += 1
        return used

    readers = 8
    reserve = 0

    def _room(self, free_bytes: int, need: int, limit_s: float) -> bool:
        for _ in self._victims(limit_s):
            if free_bytes >= need:
                break
            free_bytes += self.block_bytes
        return free_bytes >= need
