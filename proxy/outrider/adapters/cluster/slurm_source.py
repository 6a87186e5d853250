"""The nodes of a Slurm job, by the variable that Slurm sets. Imported only where `peers` is `slurm`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from outrider.adapters.cluster.member_lists import in_order
from outrider.core.cluster.member import ListedMember
from outrider.settings import SettingsError

_NODES = "SLURM_JOB_NODELIST"


class SlurmSource:
    """The nodes of a job do not change while it runs, so there is one list. `port`: the peer port, on all nodes the
    same.

    Raises:
        SettingsError: this is no Slurm job.
    """

    def __init__(self, environ: Mapping[str, str], port: int) -> None:
        folded = environ.get(_NODES, "")
        try:
            # Groups are of ClusterShell's own configuration, and no part of a job.
            nodes = list(NodeSet(folded, resolver=RESOLVER_NOGROUP))
        except NodeSetException as error:
            raise SettingsError(f"--peers slurm: {_NODES}={folded}: {error}") from error
        if not nodes:
            raise SettingsError(f"--peers slurm needs the variable {_NODES}, which Slurm sets within a job.")
        self._list = in_order(ListedMember(f"{node}:{port}", name=node) for node in nodes)

    async def lists(self) -> AsyncGenerator[Sequence[ListedMember], None]:
        yield self._list
        await asyncio.Event().wait()
