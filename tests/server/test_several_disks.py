"""A proxy whose cache lies on several disks, as people see it: reads, status, metrics, `stats`, `doctor`, restarts."""

from __future__ import annotations

import errno
import json
import shutil
import threading
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from outrider.adapters.disk import disk_threads, recovery
from outrider.adapters.disk.block_dir import UnusableCacheDir
from outrider.adapters.state import pin_file
from outrider.cli.doctor.finding import Level
from outrider.cli.doctor.machine_checks import cache_findings
from outrider.settings import load
from tests.server.test_bottleneck_verdict import shown
from tests.support.faulty_disk import SickDisk
from tests.support.logs import logged
from tests.support.proxy import Command, Proxy
from tests.support.trials import KIB, RIGHT, KnownObjects

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.bucket import Bucket

BLOCK_BYTES = 64 * KIB
OBJECTS, BLOCKS = 16, 128


@pytest.fixture(scope="module")
def known(bucket: Bucket) -> KnownObjects:
    return KnownObjects.make(bucket, "disks", OBJECTS, BLOCKS // OBJECTS * BLOCK_BYTES)


def proxy_of(bucket: Bucket, roots: list[Path], **settings: Any) -> Proxy:
    return Proxy(
        bucket, cache_dir=",".join(map(str, roots)), block_size=str(BLOCK_BYTES), scrub_bandwidth="0",
        freshness="immutable", **settings,
    )  # fmt: skip


def streams(proxy: Proxy, known: KnownObjects) -> None:
    """Two connections read all of the objects."""
    ends: list[str] = []
    readers = [threading.Thread(target=lambda: ends.append(known.read_all(proxy.address))) for _ in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert ends == [RIGHT, RIGHT]
    proxy.settle()


def until(holds: Callable[[], bool]) -> None:
    waited = threading.Event()
    for _ in range(500):
        if holds():
            return
        waited.wait(0.01)
    raise AssertionError("it does not come to hold")


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each disk is looked at a hundred times a second."""
    monkeypatch.setattr(disk_threads, "FAILURE_PAUSE_S", 0.01)
    monkeypatch.setattr(recovery, "_LOOK_S", 0.01)


@pytest.mark.usefixtures("looks_often")
def test_a_cache_on_two_disks(bucket: Bucket, known: KnownObjects, tmp_path: Path) -> None:
    roots = [tmp_path / "nvme0", tmp_path / "nvme1"]
    with proxy_of(bucket, roots) as proxy:

        def of(name: str) -> list[float]:
            return [proxy.metric(f"outrider_disk_{name}", disk=str(root)) for root in roots]

        def gets() -> float:
            return proxy.metric("outrider_origin_requests_total", method="GET")

        def states() -> list[str]:
            return [disk["state"] for disk in proxy.status()["disks"]]

        # Warm streams use both in the ratio of their rooms, which is one to one here.
        streams(proxy, known)
        before = of("reads_total")
        streams(proxy, known)
        reads = [after - earlier for after, earlier in zip(of("reads_total"), before, strict=True)]
        # A file counts as often as it is asked for: twice for one reply, and more often where the machine is busy.
        assert sum(reads) >= 2 * BLOCKS
        assert reads == pytest.approx([sum(reads) / BLOCKS * blocks for blocks in of("blocks")], rel=0.1)
        assert sum(of("blocks")) == BLOCKS
        assert abs(of("blocks")[0] - BLOCKS / 2) < 28  # five times the deviation of a fair draw
        disks = proxy.status()["disks"]
        assert sum(disk["budget_bytes"] for disk in disks) == proxy.status()["disk"]["budget_bytes"]
        assert sum(disk["used_bytes"] for disk in disks) == proxy.status()["disk"]["used_bytes"]
        assert sum(line.count("nvme") for line in shown(proxy.status())) == 2

        # One fails: its blocks come from the bucket once, and are kept on the other. The status shows all of it.
        asked, lost = gets(), int(of("blocks")[0])
        proxy.restart()
        with SickDisk(roots[0]) as sick:
            sick.fail(["open", "pread", "write", "create", "rename", "unlink", "statvfs"], errno.EIO)
            asked = gets()
            streams(proxy, known)
            assert 0 < gets() - asked <= lost
            asked = gets()
            streams(proxy, known)
            assert gets() == asked
            assert of("blocks") == [0, BLOCKS]
            assert states() == ["failing", "works"]
            assert of("works") == [0, 1]
            alert = f"1 of 2 cache disks fails, see `outrider doctor`: {roots[0]} (Input/output error)"
            assert alert in proxy.status()["verdict"]["alerts"]
            assert alert in shown(proxy.status())
            with urllib.request.urlopen(f"{proxy.admin}/readyz") as answer:
                assert answer.status == 200
        until(lambda: states() == ["works", "works"])
        assert proxy.status()["verdict"]["alerts"] == []

        # An empty disk is put in its place: it is taken up without a restart, and gets its share of what comes.
        roots[0].rename(tmp_path / "away0")
        until(lambda: states()[0] == "failing")
        roots[0].mkdir()
        until(lambda: states() == ["works", "works"])
        roots[1].rename(tmp_path / "away1")
        until(lambda: states()[1] == "failing")
        roots[1].mkdir()
        until(lambda: states() == ["works", "works"] and of("blocks") == [0, 0])
        streams(proxy, known)
        assert sum(of("blocks")) == BLOCKS
        assert min(of("blocks")) > 0

        # A restart finds all of it, and so does a verification without a proxy.
        proxy.restart()
        asked = gets()
        streams(proxy, known)
        assert gets() == asked
        proxy.stop()
        command = Command(bucket, tmp_path)
        flags = [word for root in roots for word in ("--cache-dir", str(root))]
        done = command.run("verify", "--json", *flags)
        assert json.loads(done.stdout)["blocks"] == {"wanted": BLOCKS, "verified": BLOCKS, "bad": 0}
        found = json.loads(command.run("doctor", "--json", *flags).stdout)
        speeds = [each["text"] for each in found if each["name"] == "disk speed"]
        assert [text.partition(":")[0] for text in speeds] == [str(root) for root in roots]
        assert any("on one file system" in each["text"] for each in found)
        proxy.start()


def test_pins_outlive_the_loss_of_a_disk(bucket: Bucket, known: KnownObjects, tmp_path: Path) -> None:
    roots = [tmp_path / "nvme0", tmp_path / "nvme1"]
    with logged("outrider.adapters.disk.disk_recovery") as records, proxy_of(bucket, roots) as proxy:
        # Each directory says for itself that its index is ready.
        until(lambda: {each.__dict__["disk"] for each in records} == {*map(str, roots)})
        proxy.client().put_object(Bucket="_outrider", Key="pin/keep", Body=b"s3://disks/0\n")
        until(lambda: [pin["state"] for pin in proxy.status()["pins"]] == ["done"])
        for lost in roots:
            proxy.stop()
            shutil.rmtree(lost)
            proxy.start()
            assert [pin["name"] for pin in proxy.status()["pins"]] == ["keep"]
            until(lambda: [pin["state"] for pin in proxy.status()["pins"]] == ["done"])


@pytest.mark.usefixtures("looks_often")
def test_a_disk_that_is_replaced_gets_the_pins(bucket: Bucket, known: KnownObjects, tmp_path: Path) -> None:
    roots = [tmp_path / "nvme0", tmp_path / "nvme1"]
    with proxy_of(bucket, roots) as proxy:
        proxy.client().put_object(Bucket="_outrider", Key="pin/keep", Body=b"s3://disks/0\n")
        roots[0].rename(tmp_path / "away0")
        until(lambda: proxy.status()["disks"][0]["state"] == "failing")
        roots[0].mkdir()
        until((roots[0] / "pins").exists)
        assert pin_file.load([roots[0] / "pins"]) == pin_file.load([roots[1] / "pins"]) != []


def test_a_directory_that_is_given_twice_is_an_error(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(UnusableCacheDir, match="given twice"), proxy_of(bucket, [tmp_path / "a", tmp_path / "a"]):
        pass
    settings = load({"cache_dir": [tmp_path / "a", tmp_path / "a" / "b"]}, environ={})
    (finding,) = cache_findings(settings, running_here=False)
    assert (finding.level, finding.do) == (Level.FAIL, "Give each disk a --cache-dir of its own.")
