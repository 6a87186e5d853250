"""How a GET of an object is answered, from the ground up.

1. A hit never gets here as a request: the fast path asks the `HitLookup` for the version and for leases of all blocks,
   in the very call that brings the request's bytes. Every other GET or HEAD is answered by `ObjectReads`.
2. The `VersionCache` says which version of the object may be served without asking: one that is fresh by the rules of
   the setting, and that no write has made doubtful since.
3. Without a fresh version, the `VersionLookup` puts a question to the origin. All clients that want to know share it.
   For a name that is known already it is a HEAD; for an unknown one it is a GET of the block that the client reads
   first, so that an unknown object costs one round trip. That block goes into a flight. `VersionAnswers` says which
   version a reply proves; an object whose replies prove none is forwarded, and not looked up again for a while.
4. The conditions of the request (RFC 9110) and its Range decide on the answer: 304, 412, 416, or the bytes of an
   extent.
5. The body is a `BodyRead`. It goes through the extent block by block. A block on disk is leased, and its file is sent
   by the kernel. A block on its way is followed. At each block, and several times while one arrives, the fills of the
   read-ahead window are begun. Bytes that the cache cannot take are relayed from the source of missing blocks.
6. The first byte is in hand before the head is promised. Until then another version at the origin only makes the read
   begin again; afterwards it cuts the connection. No answer mixes two contents: where the newer version differs by its
   date alone, the body goes on with it once the blocks that were sent are known to be the same in both.
"""

from outrider.engine.read.body_pieces import Body, EarlyPiece, FilePiece, Piece
from outrider.engine.read.hit_lookup import HitLookup
from outrider.engine.read.object_read import CacheStatus, ObjectReads, ReadAnswer
from outrider.engine.read.version_answers import NotCacheable
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.read.version_lookup import VersionLookup

__all__ = [
    "Body",
    "CacheStatus",
    "EarlyPiece",
    "FilePiece",
    "HitLookup",
    "NotCacheable",
    "ObjectReads",
    "Piece",
    "ReadAnswer",
    "VersionCache",
    "VersionLookup",
]
