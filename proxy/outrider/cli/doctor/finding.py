"""The result of a check of `outrider doctor`, and how it is printed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum

import typer


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


_COLOURS = {Level.OK: typer.colors.GREEN, Level.WARN: typer.colors.YELLOW, Level.FAIL: typer.colors.RED}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`name` says what was checked, `text` what was found. `do` says what to do about it; empty: nothing."""

    name: str
    level: Level
    text: str
    do: str = ""


def ok(name: str, text: str) -> Diagnosis:
    return Diagnosis(name, Level.OK, text)


def warn(name: str, text: str, do: str) -> Diagnosis:
    return Diagnosis(name, Level.WARN, text, do)


def fail(name: str, text: str, do: str) -> Diagnosis:
    return Diagnosis(name, Level.FAIL, text, do)


def show(findings: Iterable[Diagnosis]) -> bool:
    """Print each finding on stdout as it comes. Returns whether none failed."""
    healthy = True
    for finding in findings:
        level = typer.style(f"{finding.level:4}", fg=_COLOURS[finding.level], bold=True)
        typer.echo(f"{level}  {finding.name:12}  {finding.text}")
        if finding.do:
            typer.echo(f"{'':20}-> {finding.do}")
        healthy = healthy and finding.level is not Level.FAIL
    return healthy


def show_json(findings: Iterable[Diagnosis]) -> bool:
    """Print one JSON array on stdout. Returns whether no finding failed."""
    listed = list(findings)
    typer.echo(json.dumps([asdict(finding) for finding in listed], indent=2))
    return all(finding.level is not Level.FAIL for finding in listed)
