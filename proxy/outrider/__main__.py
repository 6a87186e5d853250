"""`python -m outrider`, and `outrider`."""

import sys


def main() -> None:
    try:
        # Takes a part of a second, in which somebody may think better of it.
        from outrider import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
