"""Small state files in the cache directory, which carry state from one start of the proxy to the next.

| module | file | written | read |
| --- | --- | --- | --- |
| `pin_file` | `pins` | at each change of a pin, with fsync: a pin outlives a crash | at the start |
| `learned_file` | `orders` | at a clean stop | at the start |
| `warmup_file` | `warmups` | at a clean stop, for warm-ups that it cut off | at the start, and removed once resumed |
| `members_file` | `members` | when the members of the cluster have changed | at the start |

All of them use `adapters.sealed_file`: a private temporary file that is renamed over the old one. A missing file means
an empty state. A file that cannot be read is logged and counts as missing. With several disks the pins are written to
all that work, and to others once they do; the other files to one that works.

The names of the files and their formats stay: a newer release must read the directory of an older one.
"""

from outrider.adapters.state import learned_file, members_file, pin_file, warmup_file

__all__ = ["learned_file", "members_file", "pin_file", "warmup_file"]
