"""Riding ahead: the proxy predicts what training jobs read next, fetches it before they ask, and evicts what is needed
last (Belady's rule, by prediction).

The `Planner` gets each event and decides. It does no I/O, and has no clock and no tasks; `engine.ahead` carries
out its decisions. The mechanism, from the ground up:

1. Reads. Each request is an event: client, object, bytes. `readers` shows whether it begins a pass over the object or
   goes on with one, and which bytes of the same object to read ahead. It counts the active readers.
2. Datasets. The `dataset` package groups objects by the templates of their keys, and numbers them: an object's `index`.
   `discovery` decides when it is worth learning all names: by a LIST, or by probing numbered names
   (`numbered_names_search`).
3. Jobs and epochs. The `order` package assigns each read to an epoch of a job, by the objects that are read twice.
4. Orders. An epoch's order repeats an earlier one, is announced by a hint (`hint_messages`, `hints`), or is drawn by a
   seed that a search finds. So for each object of a dataset there is an expected time until its next read.
5. Candidates. After each event `Planner.wants` asks each active epoch for its next object that is not on disk, and
   takes those due soonest (`prefetch_candidates`): within a window where the order is known, and at the readers' pace
   where only the set is known. An object is wanted only if there is room for it, or victims that are needed later
   (`prefetch_window`).
6. Outstanding prefetches. The engine fills the wanted blocks at the lowest priority. `outstanding` counts them until
   they have landed (`Planner.added`) or will not come (`dropped`), and measures how long that takes. A prefetch that is
   evicted unread is waste; for a dataset with much waste, prefetch pauses.
7. Victims. The planner is the cache policy `epoch`, too. `Victims` yields the objects of outdated versions, and then
   those whose next read is farthest away (`dataset.next_use`). For a block that no client waits for, only
   blocks that are needed later may go.

In a cluster, the planner learns of reads at the other members (`Planner.opened_on_peer`), and takes them for reads of
further clients, which may share an epoch with those here. It fetches the blocks that its node owns. A node that knows
the order of its own reader fetches all blocks of the next objects, where there is room for those of other members
(`Planner.join`). Where others must go for them, the blocks of an object are fetched one by one, just before its reader
comes to them. An object that is read elsewhere in a known order is held until its reader begins the next one.

Long computations run in steps of about 0.1 ms (`Planner.step`).
"""

from __future__ import annotations

from outrider.core.ahead.hint_messages import Plan, PlanProgress, Stall
from outrider.core.ahead.hints import Hint
from outrider.core.ahead.numbered_names_search import NumberedNames
from outrider.core.ahead.planner import Planner
from outrider.core.ahead.prefetch_candidates import Want

__all__ = ["Hint", "NumberedNames", "Plan", "PlanProgress", "Planner", "Stall", "Want"]
