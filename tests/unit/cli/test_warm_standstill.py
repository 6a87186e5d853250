"""A warm-up that stands still: the status says why, and is only asked."""

from __future__ import annotations

from typing import Any, cast

import pytest
import typer

from outrider.cli import control_client
from outrider.cli.control_client import ControlClient


class NoStatus:
    """A proxy that runs a warm-up, and refuses to show its status."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def get(self, key: str) -> dict[str, Any]:
        self.asked.append(key)
        if key == "status.json":
            raise typer.Exit(1)
        objects = {"on_disk": 0, "wanted": 0, "unsized": 0, "failed": 0}
        state = "running" if self.asked.count(key) < 5 else "done"
        return {"state": state, "objects": objects, "bytes": {"on_disk": 0, "wanted": 0}, "eta_s": None}


def test_a_status_that_is_refused_ends_no_wait_for_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_client, "_STANDSTILL_S", -1.0)
    monkeypatch.setattr(control_client, "_POLL_S", 0.0)
    proxy = NoStatus()
    assert control_client.follow(cast(ControlClient, proxy), "warm/w", quiet=True)["state"] == "done"
    assert proxy.asked.count("status.json") == 1
