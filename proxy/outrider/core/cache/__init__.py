"""The rules by which blocks are kept: on disk, in memory, and for how long a version is believed.

A version of an object is cut into blocks of a fixed size (`core.block_layout`). A read that misses asks for the missing
blocks:

1. `readahead` decides which blocks of the read to request now, and coalesces adjacent ones into one GET (`BlockRun`).
2. Before a block is written, `disk_limits` reserves its bytes. If the budget or the free space is exceeded, the store
   asks a policy (`policies`: LRU, FIFO, none; or the planner in `core.ahead`) for victims, and leaves out those that
   `pins` holds. `tenant_blocks` and `near_blocks` are policies around that one: by the shares of `tenants`, and by the
   owners of blocks in a cluster. It also limits the fills while the disk is slower than the origin.
3. The block becomes a file: `block_file` is its format, a header with checksums and then the payload. `scrub_pace` sets
   how fast the scrubber reads these files again to find bit rot. `content_ledger` knows the CRCs of the blocks of large
   objects, to compare them with the bucket's checksum.

A hit is served without asking the origin while its version is fresh: `freshness` decides that. `memory_budget` divides
the memory between exchanges with the origin, caches in memory and the requests under way; a request that finds no room
gets 503 SlowDown. `descriptor_budget` shares out the limit on open files in the same way.

Entry points: `readahead.runs_ahead`, `block_file.Header`, `disk_limits.DiskBudget`, `policies.POLICIES`, `pins.Pins`,
`freshness.is_fresh`, `memory_budget.MemoryBudget`.
"""
