"""The batch script of examples/slurm does what sbatch, srun, Outrider and torchrun understand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.cli import with_commands
from outrider.settings import load
from outrider.settings.members import SlurmPeers
from tests.support.chart import CHART

SCRIPT = CHART.parents[1] / "examples/slurm/train.sbatch"
# Options of sbatch with a value, and without. Source: sbatch(1) of Slurm 24.05.
WITH_VALUE = {"job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time"}
ALONE = {"exclusive"}
_RECORD = """#!{python}
import json, os, sys
with open("{record}", "w") as file:
    key = open(os.environ["OUTRIDER_PEER_KEY_FILE"]).read()
    mode = os.stat(os.environ["OUTRIDER_PEER_KEY_FILE"]).st_mode & 0o777
    json.dump([sys.argv[1:], dict(os.environ), key, mode], file)
"""


def ran(directory: Path) -> tuple[list[str], dict[str, str], str, int]:
    """The words of srun, its environment, the key and its file's mode: the script ran with stand-ins for Slurm."""
    commands, record = directory / "bin", directory / "record.json"
    commands.mkdir()
    programs = {
        "srun": _RECORD.format(python=sys.executable, record=record),
        "scontrol": "#!/bin/sh\nprintf 'n7\\nn8\\n'\n",
    }
    for name, text in programs.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    environ = {
        "PATH": f"{commands}:{os.environ['PATH']}", "HOME": str(directory), "USER": "ada", "SLURM_JOB_ID": "17",
        "SLURM_JOB_NODELIST": "n[7-8]", "SLURM_JOB_NUM_NODES": "2",
    }  # fmt: skip
    subprocess.run(["bash", SCRIPT], env=environ, check=True, timeout=60)
    words, seen, key, mode = json.loads(record.read_text())
    return words, seen, key, mode


def test_sbatch_knows_each_directive_and_sees_all_of_them() -> None:
    lines = SCRIPT.read_text().splitlines()
    directives = [line for line in lines if line.startswith("#SBATCH")]
    for line in directives:
        found = re.fullmatch(r"#SBATCH --([a-z-]+)(?:=(\S+))?", line)
        assert found, line
        assert found[1] in (ALONE if found[2] is None else WITH_VALUE), line
    # sbatch reads none after the first line that is no comment.
    first_command = next(at for at, line in enumerate(lines) if line and not line.startswith("#"))
    assert max(map(lines.index, directives)) < first_command
    assert lines[0] == "#!/bin/bash"


def test_the_script_starts_outrider_as_a_member_with_a_key_of_the_job(tmp_path: Path) -> None:
    words, environ, key, mode = ran(tmp_path)
    # srun's own options come first, then the command.
    command = words[words.index("outrider") :]
    given = command[2 : command.index("--")]
    options = {name: given[at + 1] for at, name in enumerate(given) if name.startswith("--")}
    shown = CliRunner().invoke(with_commands(["run", "serve"]), ["run", "--help"], color=False, terminal_width=200)
    assert command[:2] == ["outrider", "run"]
    assert all(name in shown.output for name in options)
    flags = {name.removeprefix("--").replace("-", "_"): value for name, value in options.items()}
    settings = load(flags, None, environ)
    assert (settings.peer_source, settings.freshness) == (SlurmPeers(), "immutable")
    assert settings.cache_dir == (Path("/local/ada/outrider"),)
    assert len(key.strip()) >= 32
    assert mode == 0o600
    assert settings.peer_key_file is not None
    assert not settings.peer_key_file.exists(), "the key goes with the job"


@pytest.mark.skipif(find_spec("torch") is None, reason="no torch: `make install-all` brings it for Python 3.11")
def test_torchrun_accepts_the_command_of_the_script(tmp_path: Path) -> None:
    from torch.distributed.run import parse_args

    words, *_ = ran(tmp_path)
    program, *rest = words[words.index("--") + 1 :]
    assert program == "torchrun"
    parsed = parse_args(rest)
    assert (parsed.nnodes, parsed.rdzv_endpoint, parsed.rdzv_id) == ("2", "n7:29500", "17")
    assert parsed.training_script == "train_webdataset.py"
