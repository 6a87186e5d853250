"""The pure part of maintenance commands: warm, pin, evict and verify.

1. A client sends a command with a list of objects, one name per line. `object_list` parses it: objects, prefixes, and
   templates in braces.
2. `engine.maintenance` carries the command out. A warm-up fills all blocks of the named objects, behind all demand.
3. `progress` counts meanwhile: how many objects and bytes are wanted, how many are on disk, how fast they come, which
   failed and why. The client may read that at any time.
4. In a cluster each block is fetched to its owner, or to as many members as `copies` says.
5. A warm-up that a stop of the proxy cut off is saved as a `SavedWarmup`, and begins again after the start.
"""

from outrider.core.maintenance.object_list import ObjectList, SavedWarmup, parse_list
from outrider.core.maintenance.progress import Progress, State

__all__ = ["ObjectList", "Progress", "SavedWarmup", "State", "parse_list"]
