"""The file of pins."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from outrider.adapters.disk.disk_threads import DiskThreads
from outrider.adapters.state import pin_file
from outrider.core.cache.pins import SavedPin
from outrider.core.model import ObjectRef, VersionIdentity
from outrider.metrics import Metrics
from tests.support.fakes import FakeClock

PINS = [
    SavedPin(
        "",
        "c",
        "kept",
        "s3://b/k",
        1.5,
        ((ObjectRef("b", "k"), VersionIdentity('"e"', 3, "Thu, 01 Jan 2026 00:00:00 GMT")),),
    ),
    SavedPin("o", "", "over", "", 2.5, (), has_ended=True),
]


async def test_pins_and_the_ends_of_others_are_read_as_they_were_written(tmp_path: Path) -> None:
    await pin_file.save(tmp_path / "pins", PINS, DiskThreads(Metrics(), FakeClock()), 1.0)
    assert pin_file.load([tmp_path / "pins"]) == PINS


def test_pins_of_a_release_that_saved_no_ends_and_no_dates_are_kept(tmp_path: Path) -> None:
    fields = {name: value for name, value in asdict(PINS[0]).items() if name != "has_ended"}
    (tmp_path / "pins").write_bytes(pin_file._FORMAT.encode([fields | {"objects": [[["b", "k"], '"e"', 3]]}]))
    undated = (ObjectRef("b", "k"), VersionIdentity('"e"', 3, ""))
    assert pin_file.load([tmp_path / "pins"]) == [replace(PINS[0], objects=(undated,))]
