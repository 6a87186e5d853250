"""The dashboard in a real browser: its numbers equal /metrics, and no text from a client becomes markup."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import pytest

from tests.server.browser import browser, needs_chromium
from tests.server.test_cluster_seen import twins
from tests.support import tenants
from tests.support.nodes import Nodes, until
from tests.support.proxy import Proxy
from tests.support.rawhttp import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Dialog, Page

    from tests.support.bucket import Bucket

pytestmark = needs_chromium

NAME = "dashboard"
TOKEN = "open-sesame-9"
SHARD = bytes(range(250)) * 400
HOSTILE = "<img src=x onerror=alert(1)>\"'&<script>alert(2)</script>" + "w" * 120
WAIT_MS = 60_000


class Shown(Protocol):
    """A proxy, as far as its page needs it."""

    @property
    def admin(self) -> str: ...


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.store(NAME, {f"train-{number:06d}.tar": SHARD for number in range(8)} | {f"{HOSTILE}/a.tar": SHARD})


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    pytest.importorskip("playwright", reason="playwright is not installed: `make install-all` does it")
    with browser() as running:
        yield running


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    # A verification would ask for checksums in the background, and tests here count the requests to the bucket.
    with Proxy(bucket, price_per_gb="0.09", price_per_1000_gets="0.0004", verify_origin="off") as running:
        yield running


@pytest.fixture
def complaints() -> list[str]:
    """Messages on the browser's console, uncaught errors and dialogs: the list must stay empty."""
    return []


@pytest.fixture
def opened(chromium: Browser, complaints: list[str]) -> Iterator[Callable[..., Page]]:
    contexts = []

    def open_page(proxy: Shown, shown: dict[str, Any] | None = None) -> Page:
        """`shown`: the status that the page gets; None: that of the proxy."""
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda said: complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: dismissed(dialog, complaints))
        if shown is not None:
            page.route("**/status", lambda route: route.fulfill(json=shown))
        page.goto(f"{proxy.admin}/")
        return page

    yield open_page
    for context in contexts:
        context.close()


def dismissed(dialog: Dialog, complaints: list[str]) -> None:
    complaints.append(dialog.message)
    dialog.dismiss()


def read(proxy: Proxy, *keys: str) -> None:
    for key in keys:
        assert ask(proxy.address, "GET", f"/{NAME}/{quote(key)}").status == 200
        proxy.settle()


def shards(count: int) -> list[str]:
    return [f"train-{number:06d}.tar" for number in range(count)]


def raw(page: Page, selector: str, value: float) -> None:
    """Waits until the page shows this number."""
    page.locator(f'{selector}[data-raw="{value:g}"]').wait_for()


def test_the_numbers_are_those_of_the_metrics_and_follow_them(
    proxy: Proxy, opened: Callable[..., Page], complaints: list[str]
) -> None:
    read(proxy, *shards(3))
    page = opened(proxy)
    for keys in ((), shards(3), shards(5)):
        read(proxy, *keys)
        for source in ("disk", "flight", "origin"):
            raw(page, f"#total-{source}", proxy.metric("outrider_served_bytes_total", source=source))
        raw(page, "#total-bucket", proxy.metric("outrider_origin_bytes_total"))
        raw(page, "#disk", proxy.metric("outrider_store_bytes"))
    saved = 6 * len(SHARD)
    raw(page, "#saved", saved)
    assert "spent" not in page.locator("#saved-note").inner_text()
    assert page.locator("#saved").inner_text().startswith("$")
    assert page.locator("#state").inner_text() == "live"
    assert page.locator("#board").is_visible()
    dataset = page.locator(".dataset", has_text=f"{NAME}/train-{{}}.tar")
    assert "11 reads, 5 requests to the bucket" in dataset.inner_text()
    # The first three were read again, so their next epoch has begun.
    assert [len(dataset.locator(f".map > i.{state}").all()) for state in "cR"] == [2, 3]
    assert "2 cached, 3 cached and read this epoch" in (dataset.locator(".map").get_attribute("aria-label") or "")
    assert complaints == []


def test_a_paused_page_does_not_change(proxy: Proxy, opened: Callable[..., Page]) -> None:
    page = opened(proxy)
    raw(page, "#total-flight", 0)
    held: list[Any] = []
    page.route("**/status", lambda route: held.append(route))
    while not held:
        page.evaluate("0")
    # Reached by keyboard alone: past the skip link, to the button.
    for key in ("Tab", "Tab", "Space"):
        page.keyboard.press(key)
    assert page.locator("#pause").get_attribute("aria-pressed") == "true"
    read(proxy, *shards(1))
    # An answer that comes after the pause changes nothing.
    with page.expect_response("**/status") as answered:
        held[0].continue_()
    answered.value.finished()
    # The request that comes after it in the page's own sequence.
    page.evaluate("fetch('dashboard.css').then(reply => reply.text())")
    assert page.locator("#state").inner_text() == "paused"
    assert page.locator("#total-flight").get_attribute("data-raw") == "0"
    page.unroute("**/status")
    page.keyboard.press("Space")
    raw(page, "#total-flight", len(SHARD))


def test_all_can_be_reached_by_keyboard(proxy: Proxy, opened: Callable[..., Page]) -> None:
    page = opened(proxy)
    page.locator("#board").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the numbers"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "chart"
    page.locator("#chart[aria-label*='a second served']").wait_for()
    page.locator("#p-disk[d^=M]").wait_for(state="attached")
    page.keyboard.press("ArrowLeft")
    readout = page.locator("#readout", has_text=re.compile(r"\d s ago: disk: hits .*B/s"))
    readout.wait_for()
    page.keyboard.press("Escape")
    page.locator("#readout:empty").wait_for(state="attached")


def test_the_page_fits_and_has_two_themes(proxy: Proxy, opened: Callable[..., Page], complaints: list[str]) -> None:
    read(proxy, *shards(8), *shards(8), f"{HOSTILE}/a.tar")
    page = opened(proxy)
    page.locator(".dataset h3").first.wait_for()
    fits(page)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        lightness = sum(int(part) for part in re.findall(r"\d+", ground)[:3])
        assert (lightness < 150) == (scheme == "dark")
        for selector in ("body", ".sub", ".verdict", ".tiles dt", ".dataset p"):
            assert contrast(page, selector) >= 4.5, selector
    assert complaints == []


def fits(page: Page) -> None:
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(
            "[...document.querySelectorAll('section, .tiles > div')].every(one => one.scrollWidth <= one.clientWidth)"
        )


def contrast(page: Page, selector: str) -> float:
    """Contrast ratio of text and background. Source: WCAG 2.1, 1.4.3."""
    pair = page.evaluate(
        """selector => {
            const element = document.querySelector(selector);
            let ground = element;
            while (getComputedStyle(ground).backgroundColor === 'rgba(0, 0, 0, 0)') ground = ground.parentElement;
            return [getComputedStyle(element).color, getComputedStyle(ground).backgroundColor];
        }""",
        selector,
    )
    light, dark = sorted((luminance(color) for color in pair), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(color: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_hostile_key_is_shown_as_text(proxy: Proxy, opened: Callable[..., Page], complaints: list[str]) -> None:
    read(proxy, f"{HOSTILE}/a.tar")
    page = opened(proxy)
    page.locator(".dataset h3", has_text=f"{NAME}/{HOSTILE}/*.tar").wait_for()
    page.locator("#readers td", has_text=HOSTILE).wait_for()
    assert page.locator("main img, main script").count() == 0
    assert complaints == []


def test_the_page_loads_nothing_from_other_hosts_and_runs_no_inline_code(
    proxy: Proxy, opened: Callable[..., Page], complaints: list[str]
) -> None:
    for path in ("/", "/dashboard.css", "/dashboard.js"):
        host, _, port = proxy.outrider.admin.rpartition(":")
        policy = ask((host, int(port)), "GET", path).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
    asked: list[str] = []
    page = opened(proxy)
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    page.locator("#board").wait_for()
    assert len(asked) >= 4
    assert {url.partition("/")[0] for url in asked if not url.startswith(f"{proxy.admin}/")} <= {"data:,"}
    assert complaints == []
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {textContent: 'alert(3)'}))")
    assert any("Content Security Policy" in said for said in complaints)


def test_with_a_token_the_page_asks_for_it_and_keeps_it_for_the_tab(
    bucket: Bucket, opened: Callable[..., Page]
) -> None:
    with Proxy(bucket, admin_token=TOKEN) as proxy:
        page = opened(proxy)
        page.locator("#token").wait_for()
        assert not page.locator("#board").is_visible()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        page.locator("#login-note", has_text="not the token").wait_for()
        page.keyboard.type(TOKEN)
        page.keyboard.press("Enter")
        page.locator("#state", has_text="live").wait_for()
        page.reload()
        page.locator("#state", has_text="live").wait_for()
        assert TOKEN not in page.content()
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        host, _, port = proxy.outrider.admin.rpartition(":")
        assert ask((host, int(port)), "GET", "/status").status == 401
        assert ask((host, int(port)), "GET", "/").status == 200
        assert TOKEN.encode() not in ask((host, int(port)), "GET", "/dashboard.js").body


def test_a_warmup_and_a_pin_are_shown(
    proxy: Proxy, opened: Callable[..., Page], bucket: Bucket, complaints: list[str]
) -> None:
    page = opened(proxy)
    page.locator("#board").wait_for()
    assert not page.locator("#warm-section").is_visible()
    bucket.store("to-warm", {f"{number}.bin": bytes(100_000) for number in range(4)})
    client = proxy.client()
    client.put_object(Bucket="_outrider", Key="warm/<b>val<b>", Body=b"s3://to-warm/\ns3://to-warm/no-such-key\n")
    client.put_object(Bucket="_outrider", Key="pin/base", Body=b"s3://to-warm/{0..1}.bin")
    warmed = page.locator(".job", has_text="4 of 5 objects, 400 kB of 400 kB, 1 failed")
    warmed.wait_for()
    spent = page.locator("#saved-note", has_text="spent 400 kB ahead; repays from epoch 2, ")
    spent.wait_for()
    assert "<b>val<b>" in warmed.inner_text()
    assert warmed.locator("[role=progressbar]").get_attribute("aria-valuenow") == "100"
    page.locator(".job", has_text="200 kB of 200 kB here, 2").wait_for()
    assert complaints == []


def test_the_headline_has_the_verdict_the_next_step_and_the_faults(
    proxy: Proxy, opened: Callable[..., Page], complaints: list[str]
) -> None:
    faults = ["1 of 3 members is away", "2 reads failed in the last minute"]
    for slow, level, alerts, colour in (
        ("readers", "good", [], "--good"), ("bucket", "slower", [], "--slower"), ("readers", "good", faults, "--bad")
    ):  # fmt: skip
        page = opened(proxy, proxy.status() | {"verdict": {
            "slow": slow, "level": level, "text": f"{slow}-bound: so it is (waited 50 % of the time)",
            "next": "Raise `fills`, or set `--cache-size 80GB`.", "alerts": alerts,
        }})  # fmt: skip
        page.locator("#verdict", has_text=f"{slow.capitalize()}-bound: so it is (waited 50 % of the time).").wait_for()
        assert page.locator("#next").inner_text() == "Raise fills, or set --cache-size 80GB."
        assert page.locator("#next code").all_inner_texts() == ["fills", "--cache-size 80GB"]
        assert page.locator("#alerts li").all_inner_texts() == alerts
        edge, wanted = page.evaluate(
            """name => {
                const probe = document.body.appendChild(document.createElement('i'));
                probe.style.color = `var(${name})`;
                const headline = getComputedStyle(document.querySelector('#headline'));
                return [headline.borderLeftColor, getComputedStyle(probe).color];
            }""",
            colour,
        )
        assert edge == wanted
    assert complaints == []


def test_sections_show_what_the_status_says(proxy: Proxy, opened: Callable[..., Page], complaints: list[str]) -> None:
    read(proxy, *shards(1))
    status = proxy.status()
    (reader,) = status["readers"]
    # A reader that waits is not silent.
    texts = {
        (1.0, 0, None): "GPU-bound",
        (31.0, 1, 31.0): "waiting for 31 s",
        (31.0, 1, None): "reading at its own pace",
        (31.0, 0, None): "silent for 31 s",
    }
    names = ("silent_s", "reads_under_way", "waiting_s")
    dataset = {
        "bucket": NAME, "objects": 8, "bytes": 800_000, "cached": 0.5, "epoch": None, "requests": 4, "bucket_gets": 4,
        "shards": "ccccoaaa",
    }  # fmt: skip
    page = opened(proxy, status | {
        "readers": [
            reader | dict(zip(names, facts, strict=True)) | {"name": f"reader {number}", "verdict": "GPU-bound"}
            for number, facts in enumerate(texts)
        ],
        "datasets": [dataset | {"name": "all", "all_known": True}, dataset | {"name": "more", "all_known": False}],
        "warmups": [{
            "name": "val", "state": "running", "objects": {"wanted": 50, "on_disk": 20, "failed": 1},
            "bytes": {"wanted": 1000, "on_disk": 400}, "rate_bytes_per_s": 100, "eta_s": 6.0,
        }],
        "hit_ratio_by_size": {"0.5": 0.25, "1": 0.5, "2": 1.0},
        "disk": {"used_bytes": 1, "budget_bytes": 40 * 10**9, "room_bytes": 1},
    })  # fmt: skip
    page.locator(".job", has_text="20 of 50 objects, 400 B of 1.0 kB, 1 failed, 100 B/s, 6 s left").wait_for()
    for number, text in enumerate(texts.values()):
        row = page.locator("#readers tr", has_text=f"reader {number}")
        row.locator("td", has_text=text).wait_for()
        assert ("quiet" in (row.get_attribute("class") or "")) == text.startswith("silent")
    assert page.locator("#sizes th").all_inner_texts() == ["20.0 GB", "40.0 GB, as now", "80.0 GB"]
    for text in ("8 objects, 800 kB · 50 % cached", "8 objects seen so far, 800 kB · 50 % cached"):
        page.locator(".dataset p", has_text=text).wait_for()
    label = page.locator(".map").first.get_attribute("aria-label") or ""
    assert label.endswith("4 cached, 1 partly cached, or being fetched, 3 not cached")
    assert complaints == []


def test_tenants_are_shown_with_their_shares(
    bucket: Bucket, tmp_path: Path, opened: Callable[..., Page], complaints: list[str]
) -> None:
    bucket.store(tenants.NAME, {"team/a": SHARD, "other/a": SHARD})
    file, team = tmp_path / "clients.toml", tenants.TEAM[0]
    file.write_text(
        tenants.CLIENTS.replace(f'"{team}"', f'"{team}"\ncache_share = 0.5\nline_share = "25%"').replace(
            '"nobody"', json.dumps(HOSTILE)
        )
    )
    with Proxy(bucket, auth="sigv4", clients=file, cache_size="1MB", block_size="64KiB") as proxy:
        page = opened(proxy)
        rows = page.locator("#tenants tr")
        rows.nth(2).wait_for()
        for keys, name in ((tenants.TEAM, "team"), (tenants.OTHER, "other")):
            signed = tenants.wire(proxy, keys, "GET", f"/{tenants.NAME}/{name}/a")
            assert tenants.answer_to(proxy, signed).body == SHARD
            proxy.settle()
            row = page.locator("#tenants tr", has=page.locator(f"td:first-child:text-is('{name}')"))
            row.locator(f'td[data-raw="{len(SHARD)}"]').wait_for()
        assert sorted(rows.locator("td:first-child").all_inner_texts()) == sorted([HOSTILE, "other", "team"])
        of_team = rows.filter(has_text="25 %")
        assert "111 kB cached of 500 kB\na share of 50 %" in of_team.inner_text()
        assert of_team.locator(".bar").get_attribute("aria-valuenow") == "22"
        of_other = rows.filter(has_text="other")
        assert "111 kB cached\nno share of the cache" in of_other.inner_text()
        assert of_other.locator(".bar").is_hidden()
        fits(page)
        status = proxy.status()
        shares = [tenant | {"cache_share": 0.05, "bytes_s": 2e6} for tenant in status["tenants"]]
        beyond = opened(proxy, status | {"tenants": shares}).locator("#tenants tr", has_text="team")
        beyond.locator("small", has_text="beyond its share of 5.0 %").wait_for()
        assert "2.0 MB/s" in beyond.inner_text()
    assert complaints == []


def test_a_page_shows_only_what_there_is_and_says_when_the_proxy_is_gone(
    bucket: Bucket, opened: Callable[..., Page], complaints: list[str]
) -> None:
    with Proxy(bucket) as proxy:
        page = opened(proxy)
        raw(page, "#total-origin", 0)
        for section in ("#cluster", "#tenants-section", "#sizes-section", "#warm-section"):
            assert page.locator(section).is_hidden(), section
        assert page.locator("#total-peer").count() == 0
        assert complaints == []
    page.locator("#state", has_text="not reachable").wait_for()


def test_a_name_that_is_used_twice_stands_above_the_members(
    bucket: Bucket, tmp_path: Path, opened: Callable[..., Page], complaints: list[str]
) -> None:
    with twins(bucket, tmp_path) as (proxy, _, at):
        said = opened(proxy).locator(
            "#cluster-wrong", has_text=f"twin is the name of several members: {', '.join(at)}."
        )
        said.wait_for()
        assert complaints == []


def test_the_members_of_a_cluster_are_shown_and_one_that_goes(
    bucket: Bucket, tmp_path: Path, opened: Callable[..., Page], complaints: list[str]
) -> None:
    body = bytes(range(256)) * 4096
    bucket.store(NAME, {"cluster.bin": body})
    with Nodes(bucket, tmp_path, 2, block_size=str(64 * 1024)) as nodes:
        assert ask(nodes[0].address, "GET", f"/{NAME}/cluster.bin").body == body
        until(lambda: sum(nodes[0].status()["served_bytes"].values()) == len(body), "the count of bytes")
        nodes[0].settle()
        page = opened(nodes[0])
        served = nodes[0].status()["served_bytes"]
        raw(page, "#total-peer", served["peer"])
        assert page.locator("#cluster-share").inner_text() == f"{100 * served['peer'] / len(body):.0f} %"
        assert 0 < served["peer"] < len(body)
        members = page.locator("#members tr")
        assert [row.locator("span").first.inner_text() for row in members.all()] == ["node-1 (this node)", "node-2"]
        assert [row.locator(".member-state").inner_text() for row in members.all()] == ["alive", "alive"]
        raw(page, "#members td", nodes[0].cluster["members"][1]["bytes_in"])
        shares = re.compile(r"node-1 has 100 %, node-2 has \d+ %; .* are in more than one")
        page.locator("#shares small", has_text=shares).wait_for()
        nodes[1].stop()
        members.nth(1).locator(".member-state", has_text="leaving").wait_for()
    assert complaints == []
