"""Each framework of docs/frameworks.md has code that `make frameworks` runs, or names a source."""

from __future__ import annotations

from pathlib import Path

from tests.frameworks.catalogue import PAGE, REQUIREMENTS, RUN, blocks, printed, sections, table, value
from tests.support.pages import ROOT, blocks_of


def test_each_framework_is_run_or_names_its_source() -> None:
    assert [heading for heading, text in sections() if RUN not in text and "\nSource: " not in text] == []


def test_each_framework_is_in_the_table_and_has_a_section() -> None:
    assert list(table()) == [heading for heading, _ in sections()]


def test_the_page_and_the_catalogue_name_the_same_frameworks() -> None:
    assert {value(block, RUN) for block in blocks_of(PAGE)} - {None} == REQUIREMENTS.keys()


def test_each_block_that_reads_says_what_it_prints() -> None:
    silent = {name for name in REQUIREMENTS if not any(printed(block) for block in blocks(name))}
    assert silent == set()


def test_the_table_has_the_versions_that_are_installed_for_the_tests() -> None:
    """The framework's own requirement is the first."""
    of_section = dict(sections())
    wrong = [
        f"{heading}: {requirements[0]}"
        for name, requirements in REQUIREMENTS.items()
        if requirements
        for heading, text in of_section.items()
        if f"{RUN}{name}\n" in text and f"| {requirements[0].partition('==')[2]} |" not in table()[heading]
    ]
    assert wrong == []


def test_every_file_that_is_named_as_a_source_exists() -> None:
    named = [word for _, text in sections() for word in text.split("`")[1::2] if word.endswith(".py") and "/" in word]
    assert named
    assert [name for name in named if not Path(ROOT / "tests" / name).is_file()] == []
