"""`outrider` as a member whose clock is wrong, and that greets the others as often as a test says.

`HISTORIES_CLOCK_S`: so many seconds ahead of the time; `HISTORIES_HELLO_S`: between two hellos.
"""

import os
import time

_AHEAD_S = float(os.environ.get("HISTORIES_CLOCK_S", "0"))
_right = time.time
if _AHEAD_S:
    # Before the import of the product, whose defaults name the function.
    time.time = lambda: _right() + _AHEAD_S

from outrider.__main__ import main  # noqa: E402
from outrider.engine.cluster import members  # noqa: E402

if __name__ == "__main__":
    members.HELLO_EVERY_S = float(os.environ.get("HISTORIES_HELLO_S", members.HELLO_EVERY_S))
    members._TICK_S = min(members._TICK_S, members.HELLO_EVERY_S / 5)
    main()
