"""How a missing block comes in, from the ground up.

1. A read, or prefetch, misses a block: the store does not have it, and it is not on its way. It boards the block: the
   `FlightTable` enters a `Flight` for it. From here on every other read of the block follows that flight. This is
   single-flight: one fill per block at a time.
2. `FlightTable.fill` starts a task that brings one run of adjacent blocks by one GET: a `Fill`. The task first waits
   for a slot of the `FillScheduler`. Slots go to demand before prefetch, and to the block that is nearest to its
   reader. AIMD limits how many there are. A background limit keeps prefetch from taking bandwidth that demand needs. A
   reader that meets a prefetch promotes it to demand.
3. With the slot, the fill takes room on disk for its first block: no room, no traffic. The store makes room by
   eviction, and gives a writer for a new file.
4. The fill takes the bytes from the `BlockSource`, some at a time, as they come. The source decides where they come
   from: from a peer that owns the block, if it has a `PeerReader`, else from the origin. An `OriginBody` is tried again
   with backoff, and resumed at its offset where it breaks; the `OriginReader` sends a late request twice. A fill that
   waits before a retry gives its slot back meanwhile. `patience` decides how long it goes on: as long as readers wait
   for it. A reply must prove which bytes it brings (`reply_proof`): by status, Content-Range, length, ETag and date.
   Otherwise the fill fails as `Unproved`.
5. Each piece is handed out as it arrives. It goes into the flight, where readers get it from memory, and into a write
   buffer. The first piece is the one that the first reader waits for: the tail of a block comes first, and its head by
   a second GET afterwards, or as soon as a reader wants it.
6. A full buffer is written to the block's file by a thread. From then on, readers of these bytes get them from the
   file, by `sendfile`. The flight knows how far they `reach`. After its first piece, a tail of
   many bytes is received and written by a thread (`IncomingBody.receive`), and the event loop learns how far it is.
7. When all bytes are on disk, the writer commits the file, and the store has the block. Then the flight lands: it
   leaves the table, so that a reader finds the block in the store or in the table, never in neither.
8. A fill that fails gives the readers of its flights its error, and removes its files. A reader of a flight that failed
   for want of room relays its bytes from the source, past the cache. No reader can stop a fill: a client that hangs up
   takes nothing from the others.

The bytes received are compared with what the bucket knows of the object: `content_verification`.

Where the disk is slower than the origin, the table admits fewer fills (back-pressure), and the other misses are
relayed. A client's question about an unknown object brings its first block along: then the reply is there before the
flight, and `FlightTable.fill_from` fills from it without a slot.
"""

from outrider.engine.fill.block_source import BlockSource
from outrider.engine.fill.content_verification import ContentMismatch, ContentVerification
from outrider.engine.fill.fill_scheduler import FillScheduler, FillSlot
from outrider.engine.fill.flight import Flight
from outrider.engine.fill.flight_table import FlightTable
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.patience import Patience
from outrider.engine.fill.peer_block import PeerBlock, PeerReader
from outrider.engine.fill.refused import OriginRefused

__all__ = [
    "BlockSource",
    "ContentMismatch",
    "ContentVerification",
    "FillScheduler",
    "FillSlot",
    "Flight",
    "FlightTable",
    "OriginReader",
    "OriginRefused",
    "Patience",
    "PeerBlock",
    "PeerReader",
]
