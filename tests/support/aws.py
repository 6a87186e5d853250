"""The program `aws`, for a fork server that has imported it before."""

from __future__ import annotations

import importlib
import sys

import awscli
import awscli.clidriver


def main() -> int:
    # The place of its data stands in the environment that it was imported with.
    importlib.reload(awscli)
    return int(awscli.clidriver.main())


if __name__ == "__main__":
    sys.exit(main())
