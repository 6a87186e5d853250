"""The block store on disk: one file per block in a directory that this process has locked.

A read. `block_reads.BlockReads.lease` looks the block up in the index (`block_index`). If its file is open, the
reader gets a lease on it (`leases`); a leased block is never evicted, and its file is not closed. Otherwise the file is
opened, in a thread unless the kernel can open it without waiting for the disk. The first use of a block verifies its
checksum. A bad block becomes a miss, is deleted and counted.

A write. `create` reserves the bytes of the block: within the budget, above the free-space floor, evicting the victims
that the policy names. `block_writer.DiskBlockWriter` writes the bytes to `tmp` as they arrive, and renames the file
when it is whole. Then the block enters the index. An aborted writer removes its file and releases the reservation.

A stop. `recovery.Recovery.save` writes a snapshot of the index (`index_snapshot`, `snapshot_page`).

A start. `Recovery.index` adopts the snapshot, which loses its name first; without one it scans the directory, and reads
the header of each file that the notes of `landed_blocks` do not describe. The proxy serves meanwhile. Afterwards the
scrubber verifies blocks that nobody reads.

A version that a start finds is believed as long as before: the snapshot says when the origin confirmed it, and so do
the notes and the time of a block's file. A crash leaves no snapshot. The scan finds all blocks, but some may be older
than a write: `written_names` records which objects were written through this proxy, and those are revalidated.

`block_dir` knows the layout of the directory and does all blocking file work. `disk_threads` runs it in threads, and
leaves a disk that failed or hangs alone for a while; the origin serves in the meantime.

The entry points are `block_dir.BlockDir`, `block_store.DiskBlockStore`, `recovery.Recovery` and
`written_names.WrittenNamesFile`. They are not re-exported: `outrider doctor` needs `block_dir` alone.
"""
