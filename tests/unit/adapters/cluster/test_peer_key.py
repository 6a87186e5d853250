"""The key of the cluster: its file, its change on running members, and that no message shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from outrider.adapters.cluster.peer_key import PeerKey
from outrider.settings import SettingsError
from tests.support.logs import logged
from tests.support.member_sources import following

if TYPE_CHECKING:
    from pathlib import Path

OLD, NEW = "o" * 32, "n" * 64


def key_file(folder: Path, content: str | bytes, mode: int = 0o400) -> Path:
    path = folder / "key"
    path.unlink(missing_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("content", "keys"),
    [(OLD, (OLD,)), (f"{OLD}\n", (OLD,)), (f"{NEW}\r\n{OLD}\r\n\n", (NEW, OLD)), (f"\n  {NEW}  \n", (NEW,))],
)
def test_the_first_line_signs_and_both_are_accepted(content: str, keys: tuple[str, ...], tmp_path: Path) -> None:
    key = PeerKey(key_file(tmp_path, content))
    assert key.accepted[0] == keys[0]
    assert key.accepted == keys


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "has 0 lines"),
        ("\n\n", "has 0 lines"),
        (f"{OLD}\n{NEW}\n{OLD}", "has 3 lines"),
        ("k" * 31, "key 1 is shorter than 32 bytes"),
        (f"{OLD}\n{'k' * 31}", "key 2 is shorter than 32 bytes"),
        (b"\xff" * 32, "is no text"),
    ],
)
def test_a_file_without_a_key_is_refused_and_not_shown(content: str | bytes, problem: str, tmp_path: Path) -> None:
    path = key_file(tmp_path, content)
    with pytest.raises(SettingsError, match=problem) as refused:
        PeerKey(path)
    assert str(refused.value).startswith(f"--peer-key-file {path}: ")
    assert not {"kkk", "ooo", "nnn", "xff"} & {str(refused.value)[i : i + 3] for i in range(len(str(refused.value)))}


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--peer-key-file .*: No such file"):
        PeerKey(tmp_path / "key")


@pytest.mark.parametrize(("mode", "warns"), [(0o400, False), (0o440, False), (0o444, True), (0o644, True)])
def test_a_key_that_all_users_can_read_is_warned_of(mode: int, warns: bool, tmp_path: Path) -> None:
    with logged("outrider.adapters.cluster") as records:
        PeerKey(key_file(tmp_path, OLD, mode))
    assert [record.getMessage() for record in records] == ["key of the cluster is readable by all users"] * warns


async def test_a_changed_file_counts_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    key = PeerKey(key_file(tmp_path, OLD))
    with logged("outrider.adapters.process") as records:
        async with following(key.follow) as once:
            key_file(tmp_path, f"{OLD}\n{NEW}")
            await once()
            assert list(key.accepted) == [OLD, NEW]
            key_file(tmp_path, "short")
            for _ in range(3):
                await once()
            assert list(key.accepted) == [OLD, NEW]
            (tmp_path / "key").unlink()
            await once()
            assert list(key.accepted) == [OLD, NEW]
            key_file(tmp_path, NEW)
            await once()
            assert list(key.accepted) == [NEW]
            await once()
            key_file(tmp_path, "short")
            await once()
            key_file(tmp_path, NEW)
            for _ in range(2):
                await once()
    assert [record.getMessage() for record in records] == [
        "changed file was read",
        "changed file is wrong, its last content counts",
        "changed file is wrong, its last content counts",
        "changed file was read",
        "changed file is wrong, its last content counts",
        "changed file is as it was before it was wrong",
    ]


async def test_a_mounted_secret_is_a_link_to_a_link(tmp_path: Path) -> None:
    """As the kubelet renews it: the middle one of three is exchanged."""
    for name, content in (("v1", OLD), ("v2", NEW)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "key").write_text(content)
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "key").symlink_to("..data/key")
    key = PeerKey(tmp_path / "key")
    async with following(key.follow) as once:
        (tmp_path / "new").symlink_to("v2")
        (tmp_path / "new").rename(tmp_path / "..data")
        await once()
        assert key.accepted[0] == NEW
