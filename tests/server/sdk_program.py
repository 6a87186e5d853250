"""Runs a program of the SDK's users with time for a busy machine: `python -m tests.server.sdk_program SECONDS PATH
WORD...`."""

from __future__ import annotations

import runpy
import sys

from outrider_sdk import announcing

if __name__ == "__main__":
    announcing._LOOKUP_TIMEOUT_S = announcing._EXIT_FLUSH_S = float(sys.argv[1])
    del sys.argv[:2]
    runpy.run_path(sys.argv[0], run_name="__main__")
