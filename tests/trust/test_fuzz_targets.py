"""The targets of tests/fuzz: their seeds, and changes of these, in `make test`; under atheris in `make soak`."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.catalogue import TARGETS
from tests.fuzz.target import Target
from tests.support.trials import SCALE, Trials, fuzzing, rounds

FUZZED_S = rounds(2)
"""For all targets together: a minute in a soak of the usual length."""


@st.composite
def changed_seeds(draw: st.DrawFn, target: Target) -> bytes:
    """A seed with some runs of bytes replaced by words of any seed, or moved, doubled and left out."""
    data = draw(st.sampled_from(target.seeds))
    if draw(st.booleans()):
        start, to, count = (draw(st.integers(0, 2000)) % (len(data) + 1) for _ in range(3))
        piece, kept = data[start : start + count], data[:start] + data[start + draw(st.sampled_from([0, count])) :]
        data = kept[:to] + draw(st.sampled_from([piece, b""])) + kept[to:]
    for at, gone, word in draw(
        st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 9), st.sampled_from(target.words)), max_size=3)
    ):
        start = at % (len(data) + 1)
        data = data[:start] + word + data[start + gone :]
    return data


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_what_a_target_asserts_holds_near_its_seeds(target: Target, trials: Trials) -> None:
    for seed in target.seeds:
        target.run(seed)

    @given(changed_seeds(target))
    @fuzzing(60)
    def holds(data: bytes) -> None:
        target.run(data)
        trials.record("fuzz", "real messages, changed, in each target of tests/fuzz", "refused, or read as others do")

    holds()


@pytest.mark.skipif(SCALE == 1, reason="takes a minute: in `make soak`")
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris has no wheel for this machine")
def test_coverage_guided_fuzzing_finds_nothing(tmp_path: Path, trials: Trials) -> None:
    results = tmp_path / "results.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--seconds", str(FUZZED_S), "--folder", tmp_path, "--json", results],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for result in json.loads(results.read_text()):
        assert result["executions"] > len(TARGETS[result["target"]].seeds), result
        trials.record(
            "fuzz", "the same targets, coverage-guided", "refused, or read as others do", times=result["executions"]
        )
