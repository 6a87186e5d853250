"""Carries out prefetch: the engine's side of `core.ahead`, whose planner decides what to fetch.

1. Each request of a client is an event: `Prefetch.requested` at its start, `Prefetch.sent` at its end. So are blocks
   that the store admits, reads or drops (`event_log.BundledPolicy`). The log is reported to the planner in bundles, and
   before the store asks for a victim. A hit that the fast path served is remembered by `Prefetch.note` and reported at
   a tick (`read_log`). A hint of coming reads is `Prefetch.announce`; it can be withdrawn.
2. Within an object that is read range by range, the planner answers an event with the bytes of the read-ahead window,
   and these blocks are filled at once.
3. After each bundle `Prefetch.think` asks the planner which other objects it wants. It answers with as many blocks as
   may be on their way. Each object becomes a background task.
4. The task fills the missing blocks by `BackgroundFill`: one GET per block, behind all demand, within the token bucket
   of prefetch. If the version of the object is not known, the first GET states it. Warm-ups and pins use the same
   `BackgroundFill`.
5. At the end of the task the planner learns that no more blocks will come, and whether a retry is worthwhile. After a
   failure, prefetch pauses.
6. `DiscoveryRunner` asks the origin which objects a dataset has, when the planner wants to know: by a LIST, or by HEADs
   of numbered names.

The entry points are `prefetch.Prefetch` and `background_fill.BackgroundFill`.
"""
