"""For the tests of receivers: a machine that is busy starts processes slowly."""

from __future__ import annotations

import pytest

from outrider.adapters.origin import receivers


@pytest.fixture(autouse=True)
def patient_with_receivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy waits half a second for its first receiver, and then the event loop receives. Here the receiver is what
    is tested."""
    monkeypatch.setattr(receivers, "_START_S", 30.0)
