"""`outrider mount`: the clients' command lines, and the words for all that may be missing."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
from math import inf
from typing import TYPE_CHECKING, NoReturn

import pytest
import typer

from outrider.cli.mount.command import _bucket_and_prefix
from outrider.cli.mount.fuse_clients import FUSE_CLIENTS, Mount
from outrider.cli.mount.missing import CannotMount, MountFacts, complaint, complaint_about
from outrider.cli.mount.mounting import mounted, mounted_at
from outrider.cli.mount.running_proxy import There, Who, look_up_proxy
from outrider.core.cache.freshness import Freshness
from tests.support.child import free_ports

if TYPE_CHECKING:
    from pathlib import Path

MOUNT = Mount("pets", "train/", "/mnt/pets", "http://127.0.0.1:9480", "eu-west-1", 60.0)
KEYS = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret"}
CLIENTS = {client.name: client for client in FUSE_CLIENTS}


def words_of(name: str, **changed: object) -> str:
    mount = dataclasses.replace(MOUNT, **changed)  # type: ignore[arg-type]
    client = CLIENTS[name]
    environ = client.environ(mount, KEYS)
    return " ".join([*(f"{key}={value}" for key, value in environ.items()), *client.argv(mount)])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("outrider", "-m outrider.mount {"),
        ("outrider", '"bucket": "pets", "prefix": "train/", "directory": "/mnt/pets"'),
        ("outrider", '"believed_s": 60'),
        ("rclone", "mount2 outrider:pets/train /mnt/pets"),
        ("rclone", "RCLONE_CONFIG_OUTRIDER_ENDPOINT=http://127.0.0.1:9480 "),
        ("rclone", "--attr-timeout 60s --dir-cache-time 60s"),
        ("rclone", "--vfs-cache-mode off"),
        ("mount-s3", "pets /mnt/pets --foreground --read-only"),
        ("mount-s3", "--prefix train/"),
        ("mount-s3", "--endpoint-url http://127.0.0.1:9480 --region eu-west-1 --metadata-ttl 60"),
        ("s3fs", "pets:/train /mnt/pets -f"),
        ("s3fs", "-o url=http://127.0.0.1:9480 "),
        ("s3fs", "AWSACCESSKEYID=me AWSSECRETACCESSKEY=secret "),
        ("s3fs", "-o attr_timeout=60 "),
    ],
)
def test_each_client_gets_the_place_and_how_long_attributes_hold(name: str, said: str) -> None:
    assert said in words_of(name)


@pytest.mark.parametrize(
    ("name", "of_the_bucket", "others", "never"),
    [
        ("outrider", '"prefix": "", "directory": "/mnt/pets"', '"allow_other": true', '"believed_s": 31536000'),
        ("rclone", "outrider:pets /mnt/pets", "--allow-other", "--attr-timeout 31536000s"),
        ("mount-s3", "pets /mnt/pets", "--allow-other", "--metadata-ttl indefinite"),
        ("s3fs", "pets /mnt/pets", "-o allow_other", "-o attr_timeout=31536000"),
    ],
)
def test_a_whole_bucket_for_all_users_whose_objects_never_change(
    name: str, of_the_bucket: str, others: str, never: str
) -> None:
    assert others not in words_of(name)
    words = words_of(name, prefix="", allow_other=True, believed_s=inf)
    assert of_the_bucket in words
    assert others in words
    assert never in words


def test_freshness_always_lets_no_client_believe_anything() -> None:
    assert "--attr-timeout 0s --dir-cache-time 0s" in words_of("rclone", believed_s=0.0)
    assert "--metadata-ttl minimal" in words_of("mount-s3", believed_s=0.0)
    assert "-o attr_timeout=0 " in words_of("s3fs", believed_s=0.0)


READY = MountFacts(device=0, helper="/usr/bin/fusermount3", may_mount=True, may_gain=True, root=True)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"device": errno.ENOENT}, "modprobe fuse"),
        ({"device": errno.ENOENT}, "--device /dev/fuse --cap-add SYS_ADMIN"),
        ({"device": errno.EPERM}, "privileged: true"),
        ({"helper": None}, "apt install fuse3"),
        ({"may_mount": False}, "without CAP_SYS_ADMIN"),
        ({"may_mount": False, "root": False}, None),
        ({"may_mount": False, "root": False, "may_gain": False}, "allowPrivilegeEscalation: true"),
    ],
)
def test_what_is_missing_is_reported_with_what_to_do(changed: dict[str, object], said: str | None) -> None:
    found = complaint(dataclasses.replace(READY, **changed))  # type: ignore[arg-type]
    assert (found is None) if said is None else (found is not None and said in found)


def test_only_an_empty_directory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    assert complaint_about(tmp_path / "empty") is None
    for place, said in ((tmp_path, "is not empty"), (tmp_path / "file", "no directory"), (tmp_path / "no", "mkdir -p")):
        found = complaint_about(place)
        assert found is not None
        assert said in found


def test_a_directory_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    class Closed(type(tmp_path)):  # type: ignore[misc]
        def iterdir(self) -> NoReturn:
            raise PermissionError(errno.EACCES, "Permission denied")

    assert "Permission denied" in (complaint_about(Closed(tmp_path)) or "")


MOUNTS = r"""22 1 0:20 / / rw - ext4 /dev/vda rw
40 22 0:41 / /mnt/pets ro,nosuid - fuse.rclone outrider:pets ro
41 22 0:42 / /mnt/my\040pets ro - fuse.s3fs s3fs ro
42 22 0:43 / /mnt/disk rw - ext4 /dev/vdb rw
"""


@pytest.mark.parametrize(
    ("directory", "mounted"),
    [("/mnt/pets", True), ("/mnt/my pets", True), ("/mnt/disk", False), ("/mnt", False)],
)
def test_the_kernels_table_says_whether_it_is_mounted(directory: str, mounted: bool) -> None:
    assert mounted_at(directory, MOUNTS) is mounted


async def test_a_signal_ends_the_wait_for_a_client_that_does_not_mount(tmp_path: Path) -> None:
    async with mounted(["sleep", "600"], {"PATH": os.environ["PATH"]}, str(tmp_path), "true", lambda: True) as client:
        assert not client.ended.done()
    assert client.ended.result() == -signal.SIGTERM


async def test_a_client_that_ends_before_it_has_mounted_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(CannotMount, match="ended with status 3 before"):
        async with mounted(["sh", "-c", "exit 3"], dict(os.environ), str(tmp_path), "true", lambda: False):
            pytest.fail("nothing is mounted")


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("s3://pets", ("pets", "")),
        ("s3://pets/", ("pets", "")),
        ("s3://pets/a/b", ("pets", "a/b/")),
        ("s3://pets/a/b/", ("pets", "a/b/")),
    ],
)
def test_a_prefix_is_a_directory(url: str, place: tuple[str, str]) -> None:
    assert _bucket_and_prefix(url) == place


@pytest.mark.parametrize("url", ["pets/train", "s3:pets", "s3://", "https://pets/train"])
def test_another_url_is_wrong_use(url: str) -> None:
    with pytest.raises(typer.Exit) as wrong:
        _bucket_and_prefix(url)
    assert wrong.value.exit_code == 2


def test_certificates_that_cannot_be_read_are_reported() -> None:
    with pytest.raises(CannotMount, match=r"AWS_CA_BUNDLE=/nowhere\.pem: No such file"):
        look_up_proxy("https://127.0.0.1:1", {"AWS_CA_BUNDLE": "/nowhere.pem"})


def test_the_rules_of_a_running_proxy_hold_for_what_the_mount_keeps() -> None:
    there = There("http://127.0.0.1:1", Who.OUTRIDER, Freshness(inf), (("pets/live/*", Freshness(0.0)),))
    assert there.freshness_under("pets", "train/") == Freshness(inf)
    assert there.freshness_under("pets", "") == Freshness(0.0)
    assert There("http://127.0.0.1:1", Who.OUTRIDER).freshness_under("pets", "") is None


def test_nobody_answers_where_nobody_listens() -> None:
    assert look_up_proxy(f"http://127.0.0.1:{free_ports(1)[0]}", {}).who is Who.NOBODY
