"""The nodes of a job, from the variable that Slurm sets."""

from __future__ import annotations

import pytest

from outrider.adapters.cluster.slurm_source import SlurmSource
from outrider.core.cluster.member import ListedMember
from outrider.settings import SettingsError
from tests.support.member_sources import Watched

pytestmark = pytest.mark.lowest


@pytest.mark.parametrize(
    ("folded", "nodes"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("gpu[009-011],cpu-[1,3]", ["cpu-1", "cpu-3", "gpu009", "gpu010", "gpu011"]),
        ("r[1-2]n[1-2],login", ["login", "r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n1,n[1-2],n2", ["n1", "n2"]),
    ],
)
async def test_the_nodes_of_a_job_are_its_members(folded: str, nodes: list[str]) -> None:
    watched = Watched()
    async with watched.reading(SlurmSource({"SLURM_JOB_NODELIST": folded}, 9482)):
        assert await watched.next_list() == tuple(ListedMember(f"{node}:9482", node) for node in nodes)


@pytest.mark.parametrize("environ", [{}, {"SLURM_JOB_NODELIST": ""}])
def test_outside_of_a_job_it_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="--peers slurm needs the variable SLURM_JOB_NODELIST"):
        SlurmSource(environ, 9482)


def test_a_list_that_is_none_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"SLURM_JOB_NODELIST=n\[1-: "):
        SlurmSource({"SLURM_JOB_NODELIST": "n[1-"}, 9482)
