"""How warm-ups, pins and verifications are carried out. A client or the command line asks for them by name.

1. A warm-up (`Warmup`) is a list of names and prefixes. The `WarmupRunner` expands the prefixes by LISTs, and then
   fetches the objects, some at a time, by the means of prefetch: behind all demand, within its own token bucket and
   that of all prefetch, and in turn with those of other tenants (`FairPlaces`). An object counts once its blocks are
   on disk and verified there. Objects for which there is no room are refused, so that the end of a warm-up does not
   evict its beginning.
2. A pin is a warm-up whose objects are never evicted. `Pinning` first learns the sizes of all of them, reserves their
   room beside the other pins, and saves the pin; only then they are fetched. At a start the saved pins are restored
   before the store learns which blocks there are. Blocks that were lost are fetched again within a minute.
3. A verification (`Verification`) reads the blocks that it names and compares their checksums. Bad blocks are dropped
   and reported. They come again with the next read.
4. In a cluster, a warm-up, an eviction and a verification are passed on to all members (`Together`). A warm-up fetches
   the blocks that this member owns (`OwnPart`), and the progress is the sum of all parts. Where members are to keep
   copies, each fetches them from their owners once it has its own blocks.
5. In a cluster, all members know all pins, and each keeps the blocks that it owns (`PinsTogether`).
"""

from outrider.engine.maintenance.pinning import Pinning
from outrider.engine.maintenance.verification import Verification
from outrider.engine.maintenance.warmup import Warmup
from outrider.engine.maintenance.warmup_runner import WarmupRunner

__all__ = ["Pinning", "Verification", "Warmup", "WarmupRunner"]
