"""The engine: reads, fills, prefetch and writes, carried out through the ports of `outrider.ports`.

It runs on one event loop. The packages, from the lowest floor to the highest:

`tasks`        Background tasks and task groups that end with their owner, and the runtime that parts of the engine get.
`fill`         A missing block is filled once, for all its readers: the flight table, the scheduler of fills, one fill,
               and the source that its bytes come from.
`read`         A GET or HEAD becomes a version, an extent and a body; each byte comes from the nearest place.
`write`        Writes and all other requests pass through to the origin, and the names that they touch are forgotten.
`listing`      LIST pages and HEAD probes by which prefetch learns names, and the cache of clients' LISTs.
`cluster`      The other members of a cluster: reads of blocks and versions from them, and forgets that reach all.
`ahead`        Prefetch: the planner's wishes become fills, behind all demand.
`maintenance`  Commands: warm-ups, pins and verification.
`status`       The document of the admin port's /status.
"""
