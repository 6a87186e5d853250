"""The source that the setting `peers` names, and which libraries are imported for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from outrider.adapters.cluster.dns_source import DnsSource
from outrider.adapters.cluster.file_source import FileSource
from outrider.adapters.cluster.kubernetes_source import KubernetesSource
from outrider.adapters.cluster.slurm_source import SlurmSource
from outrider.adapters.cluster.sources import source_of
from outrider.metrics import Metrics
from outrider.settings import SettingsError
from tests.support.member_sources import kubernetes, settings_of


async def test_each_source_is_made_from_its_setting(tmp_path: Path) -> None:
    environ = {"SLURM_JOB_NODELIST": "n[1-2]"}
    async with kubernetes(tmp_path) as world:
        world.server.rotate("kubeconfig")
        (tmp_path / "config").write_text(
            "current-context: c\nclusters: [{name: k, cluster: {server: 'https://127.0.0.1:1'}}]\n"
            "contexts: [{name: c, context: {cluster: k, user: u}}]\nusers: [{name: u, user: {token: t}}]\n"
        )
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("KUBECONFIG", str(tmp_path / "config"))
            for peers, kind in (
                ("file:peers", FileSource), ("dns:a:1", DnsSource), ("slurm", SlurmSource),
                ("kubernetes:a/b", KubernetesSource),
            ):  # fmt: skip
                assert type(source_of(settings_of(peers=peers), Metrics(), 9482, environ)) is kind


@pytest.mark.parametrize(
    ("peers", "extra", "library"),
    [("kubernetes:a/b", "kubernetes", "lightkube"), ("slurm", "slurm", "ClusterShell")],
)
async def test_a_missing_library_is_reported_with_the_extra_that_has_it(
    peers: str, extra: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in (library, "httpx2")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("kubernetes_source", "slurm_source"):
        monkeypatch.delitem(sys.modules, f"outrider.adapters.cluster.{name}", raising=False)
    for name in (library, "httpx2"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SettingsError, match=rf'--peers {peers} needs the extra `{extra}`.*"outrider\[{extra}\]"'):
        source_of(settings_of(peers=peers), Metrics(), 9482, {"SLURM_JOB_NODELIST": "n1"})


@pytest.mark.one_python
def test_no_library_of_another_source_is_imported() -> None:
    """Each costs memory on every node."""
    program = (
        "import asyncio, sys\n"
        "from outrider.adapters.cluster.sources import source_of\n"
        "from outrider.metrics import Metrics\n"
        "from outrider.settings import Settings\n"
        "async def main():\n"
        "    for peers in ('file:/p', 'dns:a:1'):\n"
        "        source_of(Settings(peers=peers), Metrics(), 9482, {})\n"
        "asyncio.run(main())\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    assert "aiohttp" in imported
    assert not imported & {"lightkube", "httpx2", "ClusterShell", "yaml"}
