"""The words of `outrider stats`, by a status document that the test makes."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console, Group

from outrider.cli.stats import view

STATUS: dict[str, Any] = {
    "version": "0", "origin": None, "uptime_s": 1.0, "verdict": {"text": "", "level": "none"},
    "throughput": {}, "served_bytes": {"disk": 0, "flight": 0, "peer": 0, "origin": 0}, "origin_bytes": 0,
    "saved": {"egress_bytes": 0, "gets": 0, "egress_dollars": 0.0, "request_dollars": 0.0, "spent": None},
    "prefetch": {"window_bytes": 0, "fetched_bytes": 0, "wasted_bytes": 0},
    "disk": {"used_bytes": 0, "budget_bytes": 1000}, "hit_ratio_by_size": {}, "readers": [], "errors": [],
}  # fmt: skip


def shown(**parts: Any) -> list[str]:
    """The lines of a terminal. `parts` replace those of `STATUS`."""
    console = Console(width=200, highlight=False, force_terminal=False)
    with console.capture() as captured:
        console.print(view(STATUS | parts))
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize(
    ("size", "gets", "dollars", "spent", "text"),
    [
        (0, 0, 0.0, None, "nothing yet"),
        (0, -14, 0.0, None, "nothing yet; 14 GETs and HEADs more than readers asked for"),
        (0, 1400, 0.001, None, "1,400 GETs and HEADs"),
        (400_000, 4, 0.04, None, "400 kB, 4 GETs and HEADs, $0.04"),
        (400_000, -4, -0.02, None,
         "400 kB; 4 GETs and HEADs more than readers asked for; $0.02 more than without the cache"),
        (-400_000, -4, 0.0, "spent 400 kB ahead; repays from epoch 2",
         "nothing yet; spent 400 kB ahead; repays from epoch 2; 4 GETs and HEADs more than readers asked for"),
        (-400_000, 4, 0.0, None, "4 GETs and HEADs; spent 400 kB ahead"),
    ],
)  # fmt: skip
def test_stats_shows_no_negative_saving(size: int, gets: int, dollars: float, spent: str | None, text: str) -> None:
    saved = {"egress_bytes": size, "gets": gets, "egress_dollars": dollars, "request_dollars": 0.0, "spent": spent}
    assert f"saved       {text}" in shown(saved=saved)


@pytest.mark.parametrize(
    ("window", "fetched", "wasted", "text"),
    [
        (0, 0, 0, "nothing being fetched; nothing fetched ahead so far"),
        (500, 7000, 0, "500 B being fetched; 7.0 kB fetched ahead so far, none of it evicted unread"),
        (0, 7000, 3000, "nothing being fetched; 7.0 kB fetched ahead so far, 3.0 kB of it evicted unread"),
    ],
)
def test_stats_shows_what_is_fetched_ahead(window: int, fetched: int, wasted: int, text: str) -> None:
    ahead = {"window_bytes": window, "fetched_bytes": fetched, "wasted_bytes": wasted}
    assert f"ahead       {text}" in shown(prefetch=ahead)


def test_yellow_means_slower_and_red_an_error() -> None:
    for level, colour in (("error", "red"), ("warning", "")):
        error = {"what": "gave up", "detail": "tries: 5", "level": level, "at": 0.0, "times": 2}
        oddity = {"kind": "head_size", "text": "sizes are wrong"}
        whole = view(STATUS | {"errors": [error], "origin_oddities": [oddity]})
        assert isinstance(whole, Group)
        styles = {str(part): str(getattr(part, "style", "")) for part in whole.renderables}
        assert styles[f"last {level}: gave up (2 times): tries: 5"] == colour
        assert styles["sizes are wrong"] == ""


def test_members_that_have_sent_nothing_are_not_counted_in_bytes() -> None:
    alone = {"state": "alive", "bytes_in": None, "bytes_out": None}
    (line,) = [line for line in shown(cluster={"members": [alone], "near_bytes": 0}) if line.startswith("cluster ")]
    assert line == "cluster     1 of 1 member alive; no bytes between them yet"
    busy = alone | {"bytes_in": 7000}
    (line,) = [
        line for line in shown(cluster={"members": [alone, busy], "near_bytes": 0}) if line.startswith("cluster ")
    ]
    assert line == "cluster     2 of 2 members alive; 7.0 kB from the others"


def test_each_word_has_one_meaning() -> None:
    """`Still arriving` beside a sum since the start would say that so many bytes are under way."""
    text = "\n".join(shown())
    assert "while being fetched" in text
    for word in ("arriving", "coming", "in vain"):
        assert word not in text, word
