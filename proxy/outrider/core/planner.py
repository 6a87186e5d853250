"""Riding ahead: facts about reads in, decisions out: what to fetch next, what may go for it.

The planner is the cache policy `epoch` too (see `eviction`), so that fetching and evicting go by one foreknowledge. It
has no clock: each fact brings its time, and the policy's calls, which bring none, happen at the time of the last fact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple

from outrider.core.coming import Coming
from outrider.core.datasets import prefix_of
from outrider.core.epochs import Pass
from outrider.core.kept import Dataset, Kept, blocks_of, may_go
from outrider.core.library import Item, Library
from outrider.core.model import BlockKey, Extent, ObjectRef, ObjectVersion
from outrider.core.opens import Opens
from outrider.core.pins import Pins
from outrider.core.plans import COUNT_MAX
from outrider.core.streams import Streams
from outrider.core.tellings import Telling

# A LIST of a page costs as much as a dozen HEADs (S3's price list), and one trip: it pays where more names than that
# would have to be asked about again.
_READS_PER_PAGE = 16
_NAMES_PER_PAGE = 1000
# After this part of the time for which names are believed they are listed again, so that they never grow stale.
_LIST_AGAIN = 0.75
# A block goes for one that is needed sooner by this part of its dataset's pass; less would only trade places.
_SOONER = 0.01
# What is kept free for the readers' own misses, per reader and as part of an object, where the next read is anybody's.
_RESERVE = 0.3
# Of the cache, how much may have been fetched in vain lately before fetching pauses.
_WASTE = 0.02
# How fast that is forgiven: so much of it with each object read.
_FORGIVEN = 1 / 16
_FAREST = float("inf")
# Times the pace of the readers at which a set of unknown order is fetched.
_PACE = 2
# Offers that are tried, soonest due first: where there is no room for one, there is none for what is due later.
_TRIED = 16
# Of more sets than this, so many that were read last are thought of each time, and as many of the others in turn.
_ATTENDED = 8
# An order so likely that what lies far behind the readers is given up.
_SURE = 0.8


@dataclass(frozen=True, slots=True)
class Want:
    """Fill these blocks of an object, first to last. `size` -1: not known; then the only block is 0, and the planner
    learns the rest by `found`. `due_s`: in how many seconds it is expected to be read."""

    ref: ObjectRef
    size: int
    blocks: tuple[int, ...]
    due_s: float


class _Offer(NamedTuple):
    """What a pass reads next of what is not here."""

    due_s: float
    dataset: Dataset
    by: Pass
    key: int


class Planner:
    """Called from one thread. `library` has what is known of datasets, to be exported and restored.

    All facts cost O(log n) of what is kept, apart from `listed` and `told`, which cost as much as they bring, and the
    end of a pass and `withdraw`, which make new tables for the keys of a pass.
    """

    def __init__(
        self, capacity_bytes: int, block_bytes: int, *, keys_max: int = 1_000_000,
        disk_bytes: Callable[[int], int] = int, opened: Callable[[ObjectRef, int], None] = lambda ref, size: None,
        believed_s: Callable[[ObjectRef], float] = lambda ref: _FAREST,
        pins: Pins | None = None,
    ) -> None:  # fmt: skip
        """`disk_bytes`: how much of the capacity a block of so many bytes takes. `opened` hears of each pass over an
        object (see `ghost`). `believed_s`: for how long a name is believed without asking the origin again. What
        `pins` hold never goes; None: nothing is pinned.

        `keys_max`: names remembered at most; beyond it the dataset that was silent for longest is forgotten.
        """
        self._on_opened = opened
        self._believed_s = believed_s
        self._pins = Pins(int, lambda version: b"") if pins is None else pins
        self._pins_released = 0
        self._capacity_bytes = capacity_bytes
        self._block_bytes = block_bytes
        self._disk_bytes = disk_bytes
        self._now = 0.0
        self.library = Library(keys_max, self._forget)
        self._kept: dict[bytes, Kept] = {}
        # Versions that another one has replaced: nobody will ask for them.
        self._outdated: dict[bytes, Kept] = {}
        self._streams = Streams()
        self._opens = Opens()
        self._handed = Coming()
        self._owing: dict[Dataset, float] = {}
        self._read_last: deque[Dataset] = deque(maxlen=_ATTENDED)
        self._turn = 0
        # In one thought: so many bytes had no room, in place of what is needed later than that.
        self._no_room = _FAREST, _FAREST
        self._lists: list[tuple[str, str]] = []
        self.fetched_bytes = 0
        self.wasted_bytes = 0

    def _forget(self, dataset: Dataset) -> None:
        self._handed.forget(dataset)
        self._opens.forget(dataset)
        self._owing.pop(dataset, None)
        if dataset in self._read_last:
            self._read_last = deque((one for one in self._read_last if one is not dataset), _ATTENDED)

    # -- facts: requests ----------------------------------------------------------------------------------------

    def asked(self, client: str, ref: ObjectRef, size: int, extent: Extent, now: float) -> Extent | None:
        """A client asks for `extent` of an object of `size` bytes. What else of it is worth filling at once; None:
        nothing. `client`: whatever tells clients apart, such as address and access key."""
        self._now = now
        item = self.library.item(ref)
        dataset, key = item
        dataset.names.sizes[key] = dataset.usual_bytes = size
        dataset.active_at = now
        asked = self._streams.asked(client, item, size, extent, now)
        if asked.opened:
            self._opened(client, item)
            self._on_opened(ref, size)
        if (handed := self._handed.get(item)) is not None:
            handed.asked_for = True
        return asked.ahead

    def _opened(self, client: str, item: Item) -> None:
        dataset, key = item
        self._opens.opened(item, self._now)
        if dataset in self._owing:
            self._owing[dataset] *= 1 - _FORGIVEN
        dataset.opened(client, key, self.readers, self._now)
        if dataset not in self._read_last:
            self._read_last.append(dataset)
        self._think_of_listing(dataset)
        self._think_of_listing_again(dataset, key)

    @property
    def readers(self) -> int:
        return self._opens.readers

    def sent(self, client: str, ref: ObjectRef, now: float) -> None:
        """A request for the object has ended, answered in full or cut."""
        self._now = now
        item = self.library.item(ref)
        reader = self._streams.reader(client, item)
        if item in self._opens and reader is not None and reader.complete:
            self._opens.ended(item)

    # -- facts: sets and orders ---------------------------------------------------------------------------------

    def _think_of_listing(self, dataset: Dataset) -> None:
        if (
            not dataset.list_wanted
            and (not dataset.names.listed or dataset.list_cut)
            and not dataset.is_told
            and not dataset.too_many
            and self._now >= dataset.list_after
            and len(dataset.names.keys) >= 3
        ):
            dataset.list_wanted = True
            self._list(dataset)

    def _think_of_listing_again(self, dataset: Dataset, key: int) -> None:
        if dataset.too_many or (not dataset.names.listed and (dataset.list_wanted or not dataset.is_told)):
            return
        dataset.reads_since_list += 1
        believed_s = self._believed_s(ObjectRef(dataset.bucket, dataset.names.keys[key]))
        since_s, pause_s = self._now - dataset.listed_at, _LIST_AGAIN * believed_s
        if not 0 < believed_s < _FAREST or since_s < pause_s:
            return
        if dataset.reads_since_list >= _READS_PER_PAGE * dataset.list_pages:
            self._list(dataset)
        elif since_s > pause_s + believed_s:
            # Too slow for a LIST to pay; from here on it may become fast.
            dataset.listed_at, dataset.reads_since_list = self._now - pause_s, 0

    def _list(self, dataset: Dataset) -> None:
        self._lists.append((dataset.bucket, prefix_of(dataset.template)))
        dataset.list_cut = False
        dataset.listed_at, dataset.reads_since_list = self._now, 0

    def please_list(self) -> list[tuple[str, str]]:
        """Buckets and prefixes worth a LIST, each told once: to learn what there is, or that what is believed of many
        names still holds. Answer by `listed`, or not at all."""
        lists, self._lists = self._lists, []
        return lists

    def list_failed(self, bucket: str, prefix: str, now: float) -> None:
        """A LIST that was asked for has failed, and may come when it is tried again: it will be, after a rest."""
        for dataset in self.library.datasets():
            if dataset.list_wanted and dataset.bucket == bucket and prefix_of(dataset.template) == prefix:
                dataset.list_failed(now)

    def listed(
        self, bucket: str, entries: Iterable[tuple[str, int]], now: float, *, before: int = 0, more: bool = False
    ) -> None:
        """Keys and sizes under a prefix, in the order of the LIST, of which `before` have been told already, and `more`
        are to come: a part of it is worth fetching from, too."""
        self._now = now
        entries = list(entries)
        told = self.library.list(bucket, entries)
        for dataset in told:
            dataset.list_pages = 1 + (before + len(entries)) // _NAMES_PER_PAGE
        for dataset in told if more else self.library.datasets():
            dataset.listed(more=more)

    def told(
        self, client: str, refs: Sequence[ObjectRef], now: float, *, start: int = 0, total: int | None = None,
        telling: Telling | None = None,
    ) -> None:  # fmt: skip
        """The order in which one worker of `client` reads: numbers `start` and on of `total`; None: more may come.
        `telling` remembers it, to be asked about or withdrawn."""
        self._now = now
        for dataset, its in self.library.numbered(refs, now).items():
            one = dataset.told(client, its, start, total or COUNT_MAX, now)
            if telling is not None:
                telling.add(dataset, one, its)
            if not dataset.list_wanted and not dataset.names.listed:
                # It would cost the first reads their bandwidth: a name in a LIST may be a good part of a small sample.
                dataset.listed_at = dataset.listed_at or now
                dataset.list_pages = 1 + len(dataset.names.keys) // _NAMES_PER_PAGE

    def withdraw(self, telling: Telling, others: Iterable[Telling], now: float) -> int:
        """Expect no longer what was told and is unread, but for what `others` have told as well; how many objects that
        are. What of them is here or on its way is kept as anything else is."""
        self._now = now
        others = list(others)
        count = 0
        for dataset, one, keys in list(telling.unread()):
            for other in others:
                keys.difference_update(other.keys_of(one))
            if not keys:
                continue
            dataset.withdraw(one, keys, now)
            count += len(keys)
            for key in keys:
                # That it came in vain is nobody's wrong guess, and no reason to fetch less for a later plan.
                for here in (dataset.kept.get(key), self._handed.get((dataset, key))):
                    if here is not None:
                        here.excused = True
        return count

    def found(self, ref: ObjectRef, size: int) -> tuple[int, ...]:
        """The size of a wanted object is known now: the blocks of it that are wanted, too."""
        item = dataset, key = self.library.item(ref)
        unknown = dataset.names.sizes[key] < 0
        dataset.names.sizes[key] = dataset.usual_bytes = size
        handed = self._handed.get(item)
        if handed is None or not unknown:
            return ()
        count = max(1, -(-size // self._block_bytes))
        self._handed.found(handed, count, self._disk_bytes(-(-size // count)))
        return tuple(range(1, count))

    # -- facts: blocks (the policy's side) ----------------------------------------------------------------------

    def added(self, block: BlockKey, version: ObjectVersion) -> None:
        item = dataset, key = self.library.item(version.ref)
        kept = self._kept.get(block.version_id)
        if kept is None:
            dataset.names.sizes[key] = dataset.usual_bytes = version.size
            handed = self._handed.get(item)
            count = -(-version.size // self._block_bytes)
            kept = Kept(
                dataset, key, block.version_id, count, self._disk_bytes(-(-version.size // count)), self._now,
                ahead=handed is not None and not handed.asked_for, excused=handed is not None and handed.excused,
                reading=item in self._opens,
            )  # fmt: skip
            self._kept[block.version_id] = kept
            if (old := dataset.kept.get(key)) is not None:
                dataset.drop(old)
                # Its readers' end would be told of the new one.
                old.reading = False
                self._outdated[old.version_id] = old
            dataset.keep(kept, self._now)
        kept.present |= 1 << block.index
        dataset.kept_bytes += kept.block_bytes
        if kept.ahead:
            self.fetched_bytes += kept.block_bytes
        self._handed.landed(item, 1 << block.index, self._now)

    def dropped(self, ref: ObjectRef, *, again: bool = True) -> None:
        """What is still missing of a wanted object will not come. `again`: it may come when it is tried again."""
        item = dataset, key = self.library.item(ref)
        if item in self._handed:
            self._handed.drop(item)
            if again:
                self._fetch_again(dataset, key)

    def _fetch_again(self, dataset: Dataset, key: int) -> None:
        for one in dataset.passes():
            if one.to_come(key) and one.place[key] < one.cursor:
                heappush(one.again, (one.place[key], key))

    def read(self, block: BlockKey) -> None:
        kept = self._kept.get(block.version_id)
        if kept is not None:
            kept.served |= 1 << block.index
            kept.used_at = kept.dataset.active_at = self._now
            self._opens.heard_of((kept.dataset, kept.key), self._now)

    def removed(self, block: BlockKey) -> None:
        kept = self._kept.get(block.version_id)
        if kept is None:
            return
        kept.present &= ~(1 << block.index)
        dataset = kept.dataset
        dataset.kept_bytes -= kept.block_bytes
        if kept.ahead:
            self.wasted_bytes += kept.block_bytes
            if not kept.excused:
                self._owing[dataset] = self._owing.get(dataset, 0.0) + kept.block_bytes
        if dataset.kept.get(kept.key) is kept:
            # An outdated one's number may be from before the set was forgotten.
            self._fetch_again(dataset, kept.key)
        if not kept.present:
            del self._kept[block.version_id]
            self._outdated.pop(block.version_id, None)
            dataset.drop(kept)

    # -- decisions: what may go ---------------------------------------------------------------------------------

    def victims(self, incoming: BlockKey | None = None, version: ObjectVersion | None = None) -> Iterator[BlockKey]:
        sooner_s = -1.0
        if incoming is not None and version is not None:
            item = dataset, key = self.library.item(version.ref)
            handed = self._handed.get(item)
            if handed is not None and not handed.asked_for and handed.missing >> incoming.index & 1:
                # For what nobody waits for, only those may go that are needed later.
                sooner_s = self._worth(dataset, key)
        return self._victims(sooner_s)

    def _worth(self, dataset: Dataset, key: int) -> float:
        """Seconds beyond which the next use of a block must lie that goes for this object."""
        return min((one.seconds(self._now) * (one.until(key) + _SOONER) for one in dataset.passes()), default=_FAREST)

    def _victims(self, later_than_s: float) -> Iterator[BlockKey]:
        for kept in self._farthest(later_than_s):
            yield from blocks_of(kept)

    def _farthest(self, later_than_s: float) -> Iterator[Kept]:
        """What is needed later than that, about the farthest first."""
        if self._pins_released != self._pins.released:
            self._pins_released = self._pins.released
            for dataset in self.library.datasets():
                dataset.put_back(self._now)
        holds = self._pins.holds
        yield from (kept for kept in self._outdated.values() if not holds(kept.version_id))
        passed_by: list[Kept] = []
        try:
            for seconds, kept in self.library.farthest(self._now):
                if seconds <= later_than_s:
                    return
                if holds(kept.version_id):
                    passed_by.append(kept)
                else:
                    yield kept
        finally:
            for kept in passed_by:
                kept.dataset.set_aside(kept)

    # -- decisions: what to fetch -------------------------------------------------------------------------------

    def wants(self, now: float, free_bytes: int, blocks: int) -> list[Want]:
        """What to fetch now, most urgent first: some `blocks` blocks at most are on their way for the planner at any
        time. `free_bytes`: room that is neither used nor reserved. Each object handed out must end in `added` for each
        of its blocks, or in `dropped`."""
        self._now = now
        self._no_room = _FAREST, _FAREST
        wants: list[Want] = []
        if self._handed.blocks >= blocks:
            return wants
        active = [(dataset, one) for dataset in self._attended() if self._may_fetch(dataset)
                  for one in dataset.passes() if one.trusted and self._is_active(dataset, one)]  # fmt: skip
        offers: list[_Offer] = []
        anew = active
        while anew and self._handed.blocks < blocks:
            offers += filter(None, (self._offer(dataset, one) for dataset, one in anew))
            offers.sort(key=lambda offer: offer.due_s)
            anew = []
            for offer in offers[:_TRIED]:
                want = self._want(offer.dataset, offer.by, offer.key, offer.due_s, free_bytes)
                if want is not None:
                    wants.append(want)
                    self._advance(offer.by)
                    # Others who read the same set may have offered the same.
                    anew = [pair for pair in active if pair[0] is offer.dataset]
                    offers = [other for other in offers if other.dataset is not offer.dataset]
                    break
        return wants

    def _attended(self) -> Iterable[Dataset]:
        """Of many sets, such as a folder for each class, a bounded number."""
        datasets = self.library.datasets()
        if len(datasets) <= 2 * _ATTENDED:
            return datasets
        self._turn = (self._turn + _ATTENDED) % len(datasets)
        return dict.fromkeys([*self._read_last, *islice(datasets, self._turn, self._turn + _ATTENDED)])

    def _offer(self, dataset: Dataset, one: Pass) -> _Offer | None:
        key = self._next(dataset, one)
        return None if key is None else _Offer(one.until(key) * one.seconds(self._now), dataset, one, key)

    @property
    def blocks_coming(self) -> int:
        """Handed out to be fetched, and not here yet."""
        return self._handed.blocks

    @property
    def bytes_coming(self) -> int:
        return self._handed.bytes

    def is_coming(self, dataset: Dataset, key: int) -> bool:
        return (dataset, key) in self._handed

    def _may_fetch(self, dataset: Dataset) -> bool:
        return self._owing.get(dataset, 0.0) <= _WASTE * self._capacity_bytes + 2 * self._block_bytes

    def _is_active(self, dataset: Dataset, one: Pass) -> bool:
        alive = max(one.last, min(dataset.active_at, one.last + 8 * self.readers * one.gap_s))
        return self._now - alive <= max(1.0, 1.5 * one.pause_s)

    def _next(self, dataset: Dataset, one: Pass) -> int | None:
        """The next key that this pass will read and that is neither here nor coming."""
        while True:
            coming = self._coming(one)
            if coming is None:
                return None
            if not (self._is_fetched(dataset, one, coming) or self._is_too_large(dataset, one, coming)):
                in_agenda = one.again or one.cursor < len(one.agenda)
                if not (in_agenda and one.order > _SURE and one.is_passed_over(coming)):
                    return coming
                # What a run taken up in mid-epoch has left behind comes round much later: it is not waited for.
                one.behind.append(coming)
            self._advance(one)

    def _is_too_large(self, dataset: Dataset, one: Pass, key: int) -> bool:
        """An exception among its like, that would hold up the others."""
        size, room_bytes = dataset.names.sizes[key], self._capacity_bytes // (self.readers + 1)
        return one.part < 1 and self._disk_bytes(size) > room_bytes >= self._disk_bytes(dataset.usual_bytes) >= 0

    def _coming(self, one: Pass) -> int | None:
        if one.again:
            return one.again[0][1]
        if one.cursor < len(one.agenda):
            return one.agenda[one.cursor]
        if one.behind:
            return one.behind[0]
        after = one.cursor - len(one.agenda)
        # Past the end of the pass lies the next one, once this one's are all fetched.
        if one.agenda and one.repeats and after < len(one.log) and one.left <= self._window(one):
            return one.log[after]
        return None

    def _advance(self, one: Pass) -> None:
        if one.again:
            heappop(one.again)
        elif one.behind and one.cursor >= len(one.agenda):
            one.behind.popleft()
        else:
            one.cursor += 1

    def _is_fetched(self, dataset: Dataset, one: Pass, key: int) -> bool:
        in_next_pass = not one.again and one.cursor >= len(one.agenda) and not one.behind
        if (dataset, key) in self._handed or not (in_next_pass or one.to_come(key)):
            return True
        kept = dataset.kept.get(key)
        return kept is not None and (kept.reading or kept.present.bit_count() == kept.blocks)

    def _window(self, one: Pass) -> int:
        """How many objects ahead of the readers a known order is fetched: what each of
        them opens next, and what they open while a fill takes its time, with room for its spread."""
        beside = self.readers + self.readers // 4 + 2
        if one.gap_s <= 0:
            # How fast they read is not known yet; what they read is, where it was told.
            return one.size if one.told else beside
        return beside + int((self._handed.fill_s + 4 * self._handed.spread_s) / one.gap_s)

    def _pace(self, one: Pass) -> int:
        """How many objects may be on their way where the next reads are anybody's: as many as bring twice what is read
        (Little's law). More would come no sooner to be of use, and what a reader waits for would queue behind it."""
        each_s = one.seconds(self._now) / one.size
        return 1 + int(_PACE * self._handed.fill_s / each_s)

    def _want(self, dataset: Dataset, one: Pass, key: int, due_s: float, free_bytes: int) -> Want | None:
        size = dataset.names.sizes[key]
        kept = dataset.kept.get(key)
        likely = size if size >= 0 else dataset.usual_bytes
        if likely < 0 and self._handed.has_any_of(dataset):
            # Of many whose size nobody knows, too much would come: the first tells what the others take.
            return None
        count = max(1, -(-likely // self._block_bytes))
        missing = ((1 << count) - 1) & ~(kept.present if kept is not None else 0)
        each_bytes = self._disk_bytes(-(-likely // count) if likely >= 0 else self._block_bytes)
        object_bytes = count * each_bytes
        if object_bytes * (self.readers + 1) > self._capacity_bytes and one.part < 1:
            return None
        known = one.order_known
        if known and one.until(key) * one.size > self._window(one):
            return None
        # Where the next reads are anybody's, the readers' misses need room that is not taken from what is fetched.
        reserve = 0 if known else min(self._capacity_bytes // 4, int(self.readers * object_bytes * _RESERVE))
        need = self._handed.bytes + missing.bit_count() * each_bytes + reserve
        in_next_pass = not known and not one.to_come(key)
        if not known and free_bytes < need and len(self._handed) >= self._pace(one):
            return None
        if not self._has_room(free_bytes, need, _FAREST if in_next_pass else due_s + _SOONER * one.seconds(self._now)):
            return None
        self._handed.hand_out((dataset, key), missing, each_bytes, self._now)
        blocks = tuple(index for index in range(count if size >= 0 else 1) if missing >> index & 1)
        return Want(ObjectRef(dataset.bucket, dataset.names.keys[key]), size, blocks, due_s)

    def _has_room(self, free_bytes: int, need: int, later_than_s: float) -> bool:
        if free_bytes >= need:
            return True
        refused_bytes, refused_s = self._no_room
        if need >= refused_bytes and later_than_s >= refused_s:
            return False
        for kept in self._farthest(later_than_s):
            free_bytes += may_go(kept).bit_count() * kept.block_bytes
            if free_bytes >= need:
                return True
        self._no_room = need, later_than_s
        return False
