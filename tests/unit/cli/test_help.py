"""The help texts: each example is a line that a reader can copy."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

from outrider import cli

# A terminal has 80 columns. The help has a blank on each side.
WIDTH = 78


def examples_of(text: str) -> list[str]:
    """The lines of the blocks that are printed as they are (`\\b`)."""
    return [line.strip() for block in text.split("\b\n")[1:] for line in block.split("\n\n")[0].splitlines()]


@pytest.mark.parametrize("name", ["", *cli._COMMANDS])
def test_examples_fit_a_terminal(name: str) -> None:
    text = cli._EXAMPLES if not name else inspect.getdoc(getattr(import_module(f"outrider.cli.{name}"), name)) or ""
    assert [line for line in examples_of(text) if len(line) > WIDTH] == []


def test_the_help_has_an_example_of_most_commands() -> None:
    named = {line.split()[1] for line in examples_of(cli._EXAMPLES) if line.startswith("outrider ")}
    assert named <= cli._COMMANDS.keys()
    assert len(named) >= 9
