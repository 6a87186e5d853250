"""The help texts: each example is a line that a reader can copy, and the list of commands costs little."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module

import pytest

from outrider import cli

pytestmark = pytest.mark.lowest

# A terminal has 80 columns. The help has a blank on each side.
WIDTH = 78
COMMANDS, EXAMPLES = cli._COMMANDS, cli._EXAMPLES


def examples_of(text: str) -> list[str]:
    """The lines of the blocks that are printed as they are (`\\b`)."""
    return [line.strip() for block in text.split("\b\n")[1:] for line in block.split("\n\n")[0].splitlines()]


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_examples_fit_a_terminal(name: str) -> None:
    text = EXAMPLES if not name else inspect.getdoc(getattr(import_module(f"outrider.cli.{name}"), name)) or ""
    assert [line for line in examples_of(text) if len(line) > WIDTH] == []


def test_the_help_has_an_example_of_most_commands() -> None:
    named = {line.split()[1] for line in examples_of(EXAMPLES) if line.startswith("outrider ")}
    assert named <= COMMANDS.keys()
    assert len(named) >= 9


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_words_of_each(name: str) -> None:
    shown = inspect.getdoc(getattr(import_module(f"outrider.cli.{name}"), name)) or ""
    assert shown.split("\n\n")[0] == COMMANDS[name]


@pytest.mark.parametrize(("words", "heavy"), [("--help", "outrider.settings"), ("--version", "typer")])
def test_version_and_list_of_commands_import_little(words: str, heavy: str) -> None:
    script = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules)); import outrider.__main__ as it; it.main()"
    )
    done = subprocess.run([sys.executable, "-c", script, words], capture_output=True, text=True, check=True, timeout=60)
    assert heavy not in done.stdout.splitlines()[-1].split()
