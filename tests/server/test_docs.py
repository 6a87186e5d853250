"""Runs the commands of the pages as a reader would: with a real S3 server, the real proxy, and one shell a page.

Commands for a cluster go to a stand-in for one, made of Helm's own engine and the real kubectl.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.support import fake_kubectl, playground
from tests.support.chart import README as CHART_README
from tests.support.fake_kubectl import Cluster
from tests.support.pages import ROOT, example_manifests, pages
from tests.support.shellpage import (
    DEADLINE_S,
    NO_RUN,
    PageFailed,
    possible,
    run,
    shell_blocks,
    speaks_to_a_cluster,
    steps_of,
)
from tests.support.trials import SCALE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.bucket import Bucket

# These pages begin with nothing. The others need the proxy and the bucket of the quick start.
FROM_NOTHING = {
    ROOT / "README.md",
    ROOT / "docs" / "buckets.md",
    ROOT / "docs" / "quickstart.md",
    ROOT / "docs" / "kubernetes.md",
    ROOT / "charts" / "outrider" / "README.md",
    *example_manifests(),
}
ALL = [*pages(), *example_manifests()]
WITH_COMMANDS = [page for page in ALL if any(possible(block) for block in shell_blocks(page))]
# A test cannot run these: they need a container engine, root, FUSE, a network, an hour, or a quiet machine.
OUT_OF_REACH = ("docker", "git clone", "pip install", "python3 -m venv .venv-demo", "sudo", "systemctl", "apt-get",
                "aws eks", "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector", "outrider simulate --nodes 16",
                "outrider mount")  # fmt: skip
INLINE_FOR_A_CLUSTER = (
    "helm template outrider charts/outrider",
    "kubectl create priorityclass outrider --value=1000000",
    "kubectl -n training rollout restart daemonset/outrider",
    "helm -n training test outrider --logs",
)
LONG = {
    "demo",
    "test",
    "soak",
    "audit",
    "lock",
    "bench",
    "bench-ahead",
    "bench-cluster",
    "bench-tools",
    "lint",
    "papers",
    "image",
}


def named(page: Path) -> object:
    """The page of simulations takes as long as all others together."""
    marks = [pytest.mark.skipif(SCALE == 1, reason="for `make soak`")] if page.name == "sizing.md" else []
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


@pytest.fixture(scope="module")
def world(bucket: Bucket) -> Callable[[], str]:
    """The bucket of the quick start, for all pages: none of them writes to it."""
    return cache(lambda: playground.filled(bucket))


@pytest.mark.timeout(DEADLINE_S + 60)
@pytest.mark.parametrize("page", [named(page) for page in WITH_COMMANDS])
def test_the_commands_of_a_page_print_what_it_says(page: Path, tmp_path: Path, world: Callable[[], str]) -> None:
    ran = run(page, tmp_path, world=None if page in FROM_NOTHING else world())
    assert ran == {block for block in shell_blocks(page) if possible(block)}
    if any(map(speaks_to_a_cluster, ran)):
        fake_kubectl.check(Cluster(tmp_path / "cluster"), tmp_path / "pods")


def test_only_commands_that_no_test_can_run_are_not_run() -> None:
    """A block that a test could run must not be marked `no-run`."""
    idle = {
        f"{block.name}: {command}"
        for page in ALL
        for block in shell_blocks(page)
        if NO_RUN in block.marks
        for command in block.commands
        if not out_of_reach(command)
    }
    assert idle == set()


def out_of_reach(command: str) -> bool:
    words = command.split()
    long = words[0] == "make" and len(words) > 1 and words[1] in LONG
    return long or command.lstrip().startswith(OUT_OF_REACH)


def test_commands_for_a_cluster_in_a_pages_text_are_taken(tmp_path: Path) -> None:
    """They run after the commands of the chart's own page."""
    commands = "".join(f"{command}\n" for command in INLINE_FOR_A_CLUSTER)
    page = a_page(tmp_path, f"{CHART_README.read_text()}\n```sh if=kubectl\n{commands}```\n")
    named = {span for each in pages() for span in re.findall(r"`((?:helm|kubectl) [^`\n]+)`", each.read_text())}
    assert named == {*INLINE_FOR_A_CLUSTER, "kubectl drain", "helm test"}
    run(page, tmp_path, world=None)


def a_page(directory: Path, text: str) -> Path:
    page = directory / "page.md"
    page.write_text(text)
    return page


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("```sh\ntrue\nfalse\ntrue\n```\n", "did not end well"),
        ("```sh\nno-such-command\n```\n", "did not end well"),
        ("```console\n$ echo one\ntwo\n```\n", "is said to print"),
        ("```console\n$ echo one\n```\n", "is said to print"),
        ("```sh\nhelm install fast charts/outrider --set cahce.hostPath=/mnt\n```\n", "did not end well"),
    ],
)
def test_a_wrong_page_fails(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(PageFailed, match=why):
        run(a_page(tmp_path, text), tmp_path, world=None)


def test_console_blocks_are_commands_and_what_they_print(tmp_path: Path) -> None:
    [block] = shell_blocks(a_page(tmp_path, "```console\n$ one \\\n  more\nout\nput\n$ two\n```\n"))
    assert [(step.command, step.printed) for step in steps_of(block)] == [("one \\\n  more", "out\nput\n"), ("two", "")]


def test_a_mark_decides_whether_a_block_is_run(tmp_path: Path) -> None:
    text = "".join(f"```sh{mark}\ntrue\n```\n" for mark in ("", " no-run", " if=serve", " if=levitate", " if=pytest"))
    blocks = shell_blocks(a_page(tmp_path, text))
    assert [possible(block) for block in blocks] == [True, False, True, False, True]
