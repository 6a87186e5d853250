"""The entry point of `outrider` and of `python -m outrider`."""

import sys


def main() -> None:
    try:
        # Imported here: it takes part of a second, in which Ctrl-C must not print a traceback.
        from outrider import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
