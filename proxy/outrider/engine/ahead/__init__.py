"""Carries out prefetch: the engine's side of `core.ahead`, whose planner decides what to fetch.

1. Each request of a client is an event: `Prefetch.requested` at its start, `Prefetch.sent` at its end. A hit that the
   fast path served is remembered by `Prefetch.note` and reported later (`read_log`). A hint of coming reads is
   `Prefetch.announce`; it can be withdrawn.
2. The planner gets each event. Within the object being read, it answers with the bytes of the read-ahead window,
   and these blocks are filled at once.
3. A few milliseconds later, `Prefetch.think` asks the planner which other objects it wants. It answers with as many
   blocks as may be on their way. Each object becomes a background task.
4. The task fills the missing blocks by `BackgroundFill`: one GET per block, behind all demand, within the token bucket
   of prefetch. If the version of the object is not known, the first GET states it. Warm-ups and pins use the same
   `BackgroundFill`.
5. The planner gets each landed block by the store, as the store's eviction policy. At the end of the task it hears
   that no more blocks will come, and whether a retry is worthwhile. After a failure, prefetch pauses.
6. `DiscoveryRunner` asks the origin which objects a dataset has, when the planner wants to know: by a LIST, or by HEADs
   of numbered names.

The entry points are `prefetch.Prefetch` and `background_fill.BackgroundFill`.
"""
