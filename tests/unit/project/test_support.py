"""`tests/support` says what its parts are, and holds nothing that nobody shares."""

from __future__ import annotations

import re
from pathlib import Path

from tests import support

TESTS = Path(__file__).parents[2]
MODULES = {path.stem for path in (TESTS / "support").glob("*.py")} - {"__init__"}
# Started by the name of the file or of the module, by another module here or by the Makefile.
PROGRAMS = {
    "aws",
    "aws_models",
    "forked_command",
    "lowest_versions",
    "playground",
    "quick_hellos",
    "release",
    "system_programs",
}


def test_the_list_of_its_modules_is_whole() -> None:
    named = re.findall(r"^- (`[a-z0-9_`, ]+`):", str(support.__doc__), re.MULTILINE)
    listed = [name for names in named for name in re.findall(r"`(\w+)`", names)]
    assert sorted(listed) == sorted(MODULES)


def test_each_module_is_shared() -> None:
    texts = {path: path.read_text() for path in TESTS.rglob("*.py")}
    users = {
        name: [
            path for path, text in texts.items()
            if path.stem != name and re.search(rf"tests\.support\.{name}\b|tests\.support import .*\b{name}\b", text)
        ]
        for name in MODULES - PROGRAMS
    }  # fmt: skip
    # A part of another module here stands apart for its size.
    alone = [
        name
        for name, found in users.items()
        if len(found) < 2 and found != [TESTS / "support" / f"{name.partition('_')[0]}.py"]
    ]
    assert alone == [], "move it to its only user"
