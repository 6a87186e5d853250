"""A reader of files like a data loader's worker: `python -m tests.bench.file_reader LIST`, with a path a line.

It prints `ready`, waits for a line, reads each file whole, and prints the number of bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

_PIECE_BYTES = 1024 * 1024


def main() -> None:
    paths = Path(sys.argv[1]).read_text().splitlines()
    print("ready", flush=True)
    sys.stdin.readline()
    piece, total = bytearray(_PIECE_BYTES), 0
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(piece):
                total += count
    print(total, flush=True)


if __name__ == "__main__":
    main()
