"""Runs the shell blocks of a page of documentation as its reader would: one after the other, in one shell."""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support import fake_kubectl, playground
from tests.support.child import clean_environment, free_ports
from tests.support.forkserver import server_with_aws, shell_command, write_program
from tests.support.pages import ROOT, Block, blocks_of

SHELLS = ("sh", "console")
SETTINGS = ROOT / "docs" / "settings.md"
NO_RUN, IF, RUN = "no-run", "if=", "run="
# A page takes some ten seconds, and far more on a busy machine.
DEADLINE_S = 280.0
_ADDRESS = re.compile(r"127\.0\.0\.1:(94[0-9]{2})\b")
# For pages that need the proxy and the bucket of the quick start. curl's own retries wait for whole seconds.
WORLD = """. ./playground.env
outrider serve 2> outrider.log &
until curl --silent --fail http://127.0.0.1:9481/readyz; do kill -0 $!; sleep 0.1; done
export AWS_ENDPOINT_URL=http://127.0.0.1:9480
"""
_SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class PageFailed(AssertionError):
    """A command of a page failed, or printed something else than the page says."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command to run. `printed` None: any output, and status 0; otherwise just this output, and any status."""

    block: Block | None
    command: str
    printed: str | None = None


def shell_blocks(page: Path) -> list[Block]:
    return [block for block in blocks_of(page) if block.language in SHELLS]


def possible(block: Block) -> bool:
    """Whether the block is run here: it is not marked `no-run`, tests/frameworks does not run it, and the thing that an
    `if=` names exists."""
    return (
        NO_RUN not in block.marks
        and not any(mark.startswith(RUN) for mark in block.marks)
        and all(_exists(mark.removeprefix(IF)) for mark in block.marks if mark.startswith(IF))
    )


@cache
def _exists(name: str) -> bool:
    """Whether `name` is a command of `outrider` or of the system, a Python package, or the dashboard."""
    if name == "dashboard":
        found = [*(ROOT / "proxy").rglob("*.html"), *(ROOT / "proxy").rglob("*dashboard*")]
        return any("__pycache__" not in path.parts for path in found)
    listed = re.search(rf"^\W*{re.escape(name)}\s", _help(), re.MULTILINE)
    return listed is not None or importlib.util.find_spec(name) is not None or shutil.which(name) is not None


@cache
def _help() -> str:
    return subprocess.run(
        [sys.executable, "-m", "outrider", "--help"], capture_output=True, text=True, check=True, timeout=DEADLINE_S
    ).stdout


def steps_of(block: Block) -> list[Step]:
    if block.language == "sh":
        return [Step(block, block.text)]
    steps: list[Step] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            steps.append(Step(block, line.removeprefix("$ "), ""))
        elif steps and steps[-1].command.endswith("\\"):
            steps[-1] = Step(block, f"{steps[-1].command}\n{line}", "")
        else:
            steps[-1] = Step(block, steps[-1].command, f"{steps[-1].printed}{line}\n")
    return steps


def run(page: Path, directory: Path, *, world: str | None) -> set[Block]:
    """Run all blocks that are possible here, and return them. `world`: the quick start was done before, and these lines
    name its bucket (`tests.support.playground.filled`); None: the page begins with nothing.
    Their effects on a cluster are in `directory`/cluster (`tests.support.fake_kubectl`).

    Raises PageFailed.
    """
    tree = _tree(directory / "outrider")
    (tree / "clients.toml").write_text(clients_file(page))
    ports: dict[str, str] = {}
    chosen = [block for block in shell_blocks(page) if possible(block)]
    steps: list[Step] = []
    if world is not None:
        (tree / playground.ENVIRONMENT).write_text(world)
        steps.append(Step(None, WORLD))
    steps += [step for block in chosen for step in steps_of(block)]
    lines = ["set -eu -o pipefail"]
    for number, step in enumerate(steps):
        (directory / f"{number}.sh").write_text(_ADDRESS.sub(lambda found: _moved(found[1], ports), step.command))
        run_it = f". {directory}/{number}.sh > {directory}/{number}.out 2>&1"
        lines += [run_it if step.printed is None else f"set +e; {run_it}; set -e", f"touch {directory}/{number}.done"]
    (directory / "page.sh").write_text("\n".join(lines) + "\n")
    with fake_kubectl.serving(fake_kubectl.Cluster(directory / "cluster"), tree / ".venv" / "bin"):
        _run_shell(directory, tree, ports)
    for number, step in enumerate(steps):
        _check(step, directory / str(number), tree, ports)
    # The pages that go on from there are for readers who stay.
    if not world and (left := _left(tree)):
        raise PageFailed(f"{page.name} leaves files that `git status` shows: {left}")
    return {step.block for step in steps if step.block is not None}


def speaks_to_a_cluster(block: Block) -> bool:
    return any(word in ("kubectl", "helm") for command in block.commands for word in command.split()[:1])


def clients_file(page: Path) -> str:
    """Content of the reader's clients.toml: the file that the page shows, or else that of the settings page."""
    shown = [block.text for path in (page, SETTINGS) for block in blocks_of(path) if "[[client]]" in block.text]
    return shown[0]


def _check(step: Step, files: Path, tree: Path, ports: dict[str, str]) -> None:
    where = step.block.name if step.block else "what the quick start sets up"
    out = files.with_suffix(".out")
    printed = out.read_text(errors="replace") if out.exists() else ""
    if not files.with_suffix(".done").exists():
        raise PageFailed(f"{where} did not end well:\n{step.command}\nprinted:\n{printed[-4000:]}\n{_logs(tree)}")
    if step.printed is None:
        return
    for usual, here in ports.items():
        printed = printed.replace(f"127.0.0.1:{here}", f"127.0.0.1:{usual}")
    if not doctest.OutputChecker().check_output(step.printed, printed, _SAME):
        raise PageFailed(
            f"{where}: {step.command}\nis said to print\n{step.printed}\nbut printed\n{printed}\n{_logs(tree)}"
        )


def _left(tree: Path) -> list[str]:
    """The files that the commands of a page leave in a clone, and .gitignore does not know."""
    made = [str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file() and not path.is_symlink()]
    if not made or not (ROOT / ".git").exists():
        return []
    # With --verbose and --non-matching each path has a line, which begins with `::` where no pattern matches.
    asked = ["git", "check-ignore", "--no-index", "--verbose", "--non-matching", "--stdin"]
    checked = subprocess.run(asked, cwd=ROOT, input="\n".join(made), capture_output=True, text=True, check=False).stdout
    return sorted(line.split("\t")[1] for line in checked.splitlines() if line.startswith("::"))


def _logs(tree: Path) -> str:
    """The ends of the logs of all proxies that the page started."""
    return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-2000:]}" for log in sorted(tree.glob("*.log")))


def _moved(port: str, ports: dict[str, str]) -> str:
    """The port that stands for a usual port of the pages, which may be taken here."""
    if port not in ports:
        [free] = free_ports(1)
        ports[port] = str(free)
    return f"127.0.0.1:{ports[port]}"


def _run_shell(directory: Path, tree: Path, ports: dict[str, str]) -> None:
    listen, admin = _moved("9480", ports), _moved("9481", ports)
    environ = {
        name: value
        for name, value in clean_environment().items()
        # Variables of `make VENV=... test` would reach the `make` of the pages.
        if not name.startswith("MAKE") and name not in ("MFLAGS", "VENV", "PYTHON", "XDG_CACHE_HOME")
    } | {
        "HOME": str(directory),
        "PATH": f"{tree}/.venv/bin{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": f"{ROOT}/proxy{os.pathsep}{ROOT}/sdk",
        "OUTRIDER_LISTEN": listen,
        "OUTRIDER_ADMIN": admin,
        "OUTRIDER_STATUS_URL": f"http://{admin}",
        "OUTRIDER_MIN_FREE": "0",
        "COLUMNS": "120",
    }
    with (directory / "page.out").open("wb") as out:
        shell = subprocess.Popen(
            ["bash", directory / "page.sh"], cwd=tree, env=environ, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                shell.wait(DEADLINE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
            if (tree / playground.LOG).exists():
                subprocess.run(
                    [tree / ".venv/bin/python", "-m", "tests.support.playground", "stop"], cwd=tree, env=environ,
                    capture_output=True, check=True, timeout=DEADLINE_S,
                )  # fmt: skip


def _tree(tree: Path) -> Path:
    """A tree like a clone after `make install`. Files that commands write there stay there. `outrider` and `aws` are
    forked: half of the time of a page would be their imports."""
    commands = tree / ".venv" / "bin"
    commands.mkdir(parents=True)
    for path in ROOT.iterdir():
        if not path.name.startswith("."):
            (tree / path.name).symlink_to(path)
    for path in Path(sys.executable).parent.iterdir():
        if not path.name.startswith(("python", "outrider", "aws", "activate")):
            (commands / path.name).symlink_to(path)
    server = server_with_aws()
    programs = {
        "python": [sys.executable],
        "python3": [sys.executable],
        "outrider": shell_command(server, "outrider"),
        "aws": shell_command(server, "tests.support.aws"),
    }
    for name, words in programs.items():
        write_program(commands / name, words)
    (commands / "activate").write_text(f"PATH={shlex.quote(str(commands))}:$PATH\n")
    (tree / ".venv" / "installed").touch()
    return tree
