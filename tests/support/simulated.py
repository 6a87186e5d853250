"""Writes the output of `outrider simulate` into the pages that show it: `make docs`, after a change of the policy."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

from tests.support.pages import ROOT

PAGES = (ROOT / "docs" / "sizing.md", ROOT / "docs" / "cluster.md")
_BLOCK = re.compile(r"```console\n\$ outrider (simulate .*)\n(?:.*\n)*?```\n")


def _as_printed(found: re.Match[str]) -> str:
    words = [sys.executable, "-m", "outrider", *shlex.split(found[1])]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    lines = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return f"```console\n$ outrider {found[1]}\n{lines}```\n"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(_BLOCK.sub(_as_printed, page.read_text()))
