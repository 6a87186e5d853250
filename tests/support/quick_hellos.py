"""`outrider` with members that greet each other more often than usual, for tests that wait for a change to be seen.

Hellos, the time for an answer to them, and all conclusions from it are those of members.
"""

from outrider.__main__ import main
from outrider.engine.cluster import members

if __name__ == "__main__":
    members.HELLO_EVERY_S = 1.0
    members._TICK_S = 0.2
    main()
