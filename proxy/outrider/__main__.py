"""The entry point of `outrider` and of `python -m outrider`."""

import sys

from outrider import __version__


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        # Scripts ask for it, and the command line takes a fifth of a second to import.
        sys.stdout.write(f"outrider {__version__}\n")
        return
    try:
        # Imported here: it takes part of a second, in which Ctrl-C must not print a traceback.
        from outrider import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
