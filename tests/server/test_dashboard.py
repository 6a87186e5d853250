"""The dashboard in a real browser: its numbers equal /metrics, and no text from a client becomes markup."""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tests.support import tenants
from tests.support.control_bucket import wait_for_end
from tests.support.nodes import Nodes, until
from tests.support.proxy import Proxy, ServedProxy
from tests.support.rawhttp import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from playwright.sync_api import BrowserContext, Dialog, Page

    from tests.support.bucket import Bucket

    PageOf = Callable[[Proxy | ServedProxy], AbstractContextManager[Page]]

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium in PATH: `make test-tools` installs it")

NAME = "dashboard"
TOKEN = "open-sesame-9"
SHARD = bytes(range(250)) * 400
HOSTILE = "<img src=x onerror=alert(1)>\"'&<script>alert(2)</script>" + "w" * 120
WAIT_MS = 60_000
# The page asks for the status at once, as it does each second, and shows it.
LOOK = "ask()"


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.store(NAME, {f"train-{number:06d}.tar": SHARD for number in range(8)} | {f"{HOSTILE}/a.tar": SHARD})


@pytest.fixture(scope="module")
def chromium() -> Iterator[BrowserContext]:
    """Debian's. No test that runs an event loop in this thread may run meanwhile, since Playwright runs one here."""
    driver = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: `make install-all` does it"
    )
    # Chromium refuses its own sandbox as root; it loads only pages of the tests. A container's /dev/shm is small.
    # The pages of all tests share one process: a new one takes a second of CPU.
    flags = [
        "--disable-dev-shm-usage",
        "--renderer-process-limit=1",
        "--disable-gpu",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
    ]
    with driver.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield running.new_context(viewport={"width": 1280, "height": 900})
        running.close()


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    # A verification would ask for checksums in the background, and tests here count the requests to the bucket.
    with Proxy(bucket, price_per_gb="90", price_per_1000_gets="0.4", verify_origin="off") as running:
        yield running


@pytest.fixture(scope="module")
def complaints() -> list[str]:
    """Messages on the browser's console, uncaught errors and dialogs."""
    return []


@pytest.fixture(autouse=True)
def nothing_to_complain_about(complaints: list[str]) -> Iterator[None]:
    complaints.clear()
    yield
    assert complaints == []


@contextmanager
def opened(chromium: BrowserContext, complaints: list[str], proxy: Proxy | ServedProxy) -> Iterator[Page]:
    page = chromium.new_page()
    page.set_default_timeout(WAIT_MS)
    page.on("console", lambda said: complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: dismissed(dialog, complaints))
    page.goto(f"{proxy.admin}/")
    yield page
    page.close()


@pytest.fixture
def page_of(chromium: BrowserContext, complaints: list[str]) -> PageOf:
    return partial(opened, chromium, complaints)


@pytest.fixture(scope="module")
def busy(bucket: Bucket) -> Iterator[Proxy]:
    """It has served all objects twice."""
    with Proxy(bucket, verify_origin="off") as running:
        read(running, *shards(8), *shards(8), f"{HOSTILE}/a.tar")
        yield running


@pytest.fixture(scope="module")
def page(chromium: BrowserContext, complaints: list[str], busy: Proxy) -> Iterator[Page]:
    """That of `busy`. A test leaves it as it was."""
    with opened(chromium, complaints, busy) as made:
        yield made


@pytest.fixture
def showing(page: Page, busy: Proxy) -> Iterator[Callable[..., Page]]:
    """The page shows the proxy's status with these changes."""

    def show(**changes: Any) -> Page:
        override(page, busy.status() | changes)
        return page

    yield show
    page.unroute("**/status")


def override(page: Page, status: dict[str, Any]) -> None:
    """The page shows this status."""
    page.unroute("**/status")
    page.route("**/status", lambda route: route.fulfill(json=status))
    page.evaluate(LOOK)


def dismissed(dialog: Dialog, complaints: list[str]) -> None:
    complaints.append(dialog.message)
    dialog.dismiss()


def read(proxy: Proxy, *keys: str) -> None:
    for key in keys:
        assert ask(proxy.address, "GET", f"/{NAME}/{quote(key)}").status == 200
        proxy.settle()


def shards(count: int) -> list[str]:
    return [f"train-{number:06d}.tar" for number in range(count)]


def raw(page: Page, selector: str) -> float:
    """The number that the page shows there."""
    return float(page.locator(selector).get_attribute("data-raw") or "nan")


def text(page: Page, selector: str) -> str:
    return str(page.locator(selector).inner_text())


def test_the_numbers_are_those_of_the_metrics_and_follow_them(proxy: Proxy, page_of: PageOf) -> None:
    read(proxy, *shards(3))
    with page_of(proxy) as page:
        page.locator("#board").wait_for()
        for keys in ((), shards(3), shards(5)):
            read(proxy, *keys)
            page.evaluate(LOOK)
            for source in ("disk", "flight", "origin"):
                assert raw(page, f"#total-{source}") == proxy.metric("outrider_served_bytes_total", source=source)
            assert raw(page, "#total-bucket") == proxy.metric("outrider_origin_bytes_total")
            assert raw(page, "#disk") == proxy.metric("outrider_store_bytes")
        assert raw(page, "#saved") == 6 * len(SHARD)
        assert "spent" not in text(page, "#saved-note")
        assert text(page, "#saved").startswith("$")
        assert text(page, "#state") == "live"
        dataset = page.locator(".dataset", has_text=f"{NAME}/train-{{}}.tar")
        assert "11 reads, 5 requests to the bucket" in dataset.inner_text()
        # The first three were read again, so their next epoch has begun.
        assert [len(dataset.locator(f".map > i.{state}").all()) for state in "cR"] == [2, 3]
        assert "2 cached, 3 cached and read this epoch" in (dataset.locator(".map").get_attribute("aria-label") or "")
        # It looks again by itself.
        read(proxy, *shards(6))
        page.locator(f'#disk[data-raw="{proxy.metric("outrider_store_bytes"):g}"]').wait_for()


def test_a_paused_page_does_not_change(page: Page, busy: Proxy) -> None:
    before = raw(page, "#total-disk")
    held: list[Any] = []
    page.route("**/status", lambda route: held.append(route))
    page.evaluate(f"void {LOOK}")
    while not held:
        page.evaluate("0")
    # Reached by keyboard alone: past the skip link, to the button.
    for key in ("Tab", "Tab", "Space"):
        page.keyboard.press(key)
    assert page.locator("#pause").get_attribute("aria-pressed") == "true"
    read(busy, *shards(1))
    # An answer that comes after the pause changes nothing.
    with page.expect_response("**/status") as answered:
        held[0].continue_()
    answered.value.finished()
    # The request that comes after it in the page's own sequence.
    page.evaluate("fetch('dashboard.css').then(reply => reply.text())")
    assert text(page, "#state") == "paused"
    assert raw(page, "#total-disk") == before
    page.unroute("**/status")
    page.keyboard.press("Space")
    page.locator(f'#total-disk[data-raw="{before + len(SHARD):g}"]').wait_for()
    page.evaluate("document.activeElement.blur()")


def test_all_can_be_reached_by_keyboard(page: Page) -> None:
    page.reload()
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


def test_the_page_fits_and_has_two_themes(page: Page) -> None:
    fits(page)
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        lightness = sum(int(part) for part in re.findall(r"\d+", ground)[:3])
        assert (lightness < 150) == (scheme == "dark")
        for selector in ("body", ".sub", ".verdict", ".tiles dt", ".dataset p"):
            assert contrast(page, selector) >= 4.5, selector


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


def test_a_hostile_key_is_shown_as_text(page: Page) -> None:
    page.locator(".dataset h3", has_text=f"{NAME}/{HOSTILE}/*.tar").wait_for()
    page.locator("#readers td", has_text=HOSTILE).wait_for()
    assert page.locator("main img, main script").count() == 0


def test_the_page_loads_nothing_from_other_hosts_and_runs_no_inline_code(
    page: Page, busy: Proxy, complaints: list[str]
) -> None:
    for path in ("/", "/dashboard.css", "/dashboard.js"):
        policy = ask(admin_of(busy), "GET", path).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    page.locator("#board").wait_for()
    assert len(asked) >= 4
    assert {url.partition("/")[0] for url in asked if not url.startswith(f"{busy.admin}/")} <= {"data:,"}
    assert complaints == []
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {textContent: 'alert(3)'}))")
    assert [said for said in complaints if "Content Security Policy" in said] == complaints != []
    complaints.clear()


def admin_of(proxy: Proxy) -> tuple[str, int]:
    host, _, port = proxy.outrider.admin.rpartition(":")
    return host, int(port)


def test_with_a_token_the_page_asks_for_it_and_keeps_it_for_the_tab(
    bucket: Bucket, page_of: PageOf, complaints: list[str]
) -> None:
    with Proxy(bucket, admin_token=TOKEN) as proxy, page_of(proxy) as page:
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
        assert ask(admin_of(proxy), "GET", "/status").status == 401
        assert ask(admin_of(proxy), "GET", "/").status == 200
        assert TOKEN.encode() not in ask(admin_of(proxy), "GET", "/dashboard.js").body
        # The browser's own words on the refused questions.
        assert all("401" in said for said in complaints)
        complaints.clear()


def test_a_warmup_and_a_pin_are_shown(proxy: Proxy, page_of: PageOf, bucket: Bucket) -> None:
    bucket.store("to-warm", {f"{number}.bin": bytes(100_000) for number in range(4)})
    with page_of(proxy) as page:
        page.locator("#board").wait_for()
        assert not page.locator("#warm-section").is_visible()
        client = proxy.client()
        client.put_object(Bucket="_outrider", Key="warm/<b>val<b>", Body=b"s3://to-warm/\ns3://to-warm/no-such-key\n")
        client.put_object(Bucket="_outrider", Key="pin/base", Body=b"s3://to-warm/{0..1}.bin")
        wait_for_end(client, "warm/<b>val<b>")
        wait_for_end(client, "pin/base")
        page.evaluate(LOOK)
        warmed = page.locator(".job", has_text="4 of 5 objects, 400 kB of 400 kB, 1 failed")
        assert warmed.locator("small").inner_text() == "s3://to-warm/no-such-key: 404 NoSuchKey"
        assert "spent 400 kB ahead; repays from epoch 2; " in text(page, "#saved-note")
        assert "<b>val<b>" in warmed.inner_text()
        assert warmed.locator("[role=progressbar]").get_attribute("aria-valuenow") == "100"
        assert page.locator(".job", has_text="200 kB of 200 kB here, 2").count() == 1


def test_the_headline_has_the_verdict_the_next_step_and_the_faults(showing: Callable[..., Page]) -> None:
    faults = [
        "1 of 3 members is away: see `outrider cluster`",
        "2 reads failed in the last minute: see the last errors",
    ]
    for slow, level, alerts, colour in (
        ("readers", "good", [], "--good"), ("bucket", "slower", [], "--slower"), ("readers", "good", faults, "--bad")
    ):  # fmt: skip
        page = showing(verdict={
            "slow": slow, "level": level, "text": f"{slow}-bound: so it is (waited 50 % of the time)",
            "next": "Raise `fills`, or set `--cache-size 80GB`.", "alerts": alerts,
        })  # fmt: skip
        assert text(page, "#verdict") == f"{slow.capitalize()}-bound: so it is (waited 50 % of the time)."
        assert text(page, "#next") == "Raise fills, or set --cache-size 80GB."
        assert page.locator("#next code").all_inner_texts() == ["fills", "--cache-size 80GB"]
        assert page.locator("#alerts li").all_inner_texts() == [alert.replace("`", "") for alert in alerts]
        assert page.locator("#alerts code").count() == (1 if alerts else 0)
        edge, wanted = colours(page, "#headline", "borderLeftColor", colour)
        assert edge == wanted


def test_sections_show_what_the_status_says(showing: Callable[..., Page], busy: Proxy) -> None:
    reader, *_ = busy.status()["readers"]
    # A reader that waits is not silent.
    texts = {
        (1.0, 0, None): "GPU-bound",
        (31.0, 1, 31.0): "waiting for 31 s",
        (31.0, 1, 12.0): "waiting for 12 s",
        (31.0, 1, None): "reading at its own pace",
        (31.0, 0, None): "silent for 31 s",
    }
    names = ("silent_s", "reads_under_way", "waiting_s")
    dataset = {
        "bucket": NAME, "objects": 8, "bytes": 800_000, "cached": 0.5, "epoch": None, "requests": 4, "bucket_gets": 4,
        "shards": "ccccoaaa",
    }  # fmt: skip
    page = showing(
        readers=[
            reader | dict(zip(names, facts, strict=True)) | {"name": f"reader {number}", "verdict": "GPU-bound"}
            for number, facts in enumerate(texts)
        ],
        datasets=[dataset | {"name": "all", "all_known": True}, dataset | {"name": "more", "all_known": False}],
        warmups=[{
            "name": "val", "state": "running", "objects": {"wanted": 50, "on_disk": 20, "failed": 1},
            "bytes": {"wanted": 1000, "on_disk": 400}, "rate_bytes_per_s": 100, "eta_s": 6.0, "failures": [],
        }],
        hit_ratio_by_size={"0.5": 0.25, "1": 0.5, "2": 1.0},
        disk={"used_bytes": 1, "budget_bytes": 40 * 10**9, "room_bytes": 1},
    )  # fmt: skip
    assert "20 of 50 objects, 400 B of 1.0 kB, 1 failed, 100 B/s, 6 s left" in text(page, ".job")
    for number, words in enumerate(texts.values()):
        row = page.locator("#readers tr", has_text=f"reader {number}")
        assert row.locator("td").last.inner_text() == words
        assert ("quiet" in (row.get_attribute("class") or "")) == words.startswith("silent")
    assert page.locator("#sizes th").all_inner_texts() == ["20.0 GB", "40.0 GB, as now", "80.0 GB"]
    for words in ("8 objects, 800 kB · 50 % cached", "8 objects seen so far, 800 kB · 50 % cached"):
        assert page.locator(".dataset p", has_text=words).count() == 1
    label = page.locator(".map").first.get_attribute("aria-label") or ""
    assert label.endswith("4 cached, 1 partly cached, or being fetched, 3 not cached")


def colours(page: Page, selector: str, style: str, variable: str) -> list[str]:
    """The colour of the element, and that of the page's variable."""
    found: list[str] = page.evaluate(
        """([selector, style, variable]) => {
            const probe = document.body.appendChild(document.createElement('i'));
            probe.style.color = `var(${variable})`;
            return [getComputedStyle(document.querySelector(selector))[style], getComputedStyle(probe).color];
        }""",
        [selector, style, variable],
    )
    return found


def test_a_reader_that_waits_has_the_colour_of_its_verdict(showing: Callable[..., Page], busy: Proxy) -> None:
    """Amber is slower than it could be. A reader of a bucket that fails is red, as the verdict above it."""
    reader, *_ = busy.status()["readers"]
    for level, variable in (("none", "--disk"), ("good", "--disk"), ("slower", "--slower"), ("bad", "--bad")):
        page = showing(readers=[reader | {"stall": 0.9, "level": level}])
        assert text(page, "#readers .stall").strip() == "90 %"
        found, wanted = colours(page, "#readers .bar > i", "backgroundColor", variable)
        assert found == wanted, level


def test_no_negative_saving_is_shown(showing: Callable[..., Page]) -> None:
    for size, gets, dollars, spent, shown, note in (
        (0, 0, 0.0, None, "nothing yet", ""),
        (0, -14, 0.0, None, "nothing yet", "14 GETs and HEADs more than readers asked for"),
        (400_000, 4, 0.001, None, "400 kB", "4 GETs and HEADs"),
        (400_000, 4, 0.04, None, "$0.04", "400 kB, 4 GETs and HEADs"),
        (
            -400_000, -4, -0.04, "spent 400 kB ahead; repays from epoch 2", "nothing yet",
            "spent 400 kB ahead; repays from epoch 2; 4 GETs and HEADs more than readers asked for; "
            "$0.04 more than without the cache",
        ),
    ):  # fmt: skip
        saved = {"egress_bytes": size, "gets": gets, "egress_dollars": dollars, "request_dollars": 0.0, "spent": spent}
        page = showing(saved=saved)
        assert raw(page, "#saved") == size
        assert (text(page, "#saved"), text(page, "#saved-note")) == (shown, note)


def test_a_page_without_reads_has_sentences_and_shows_only_what_there_is(
    bucket: Bucket, page_of: PageOf, complaints: list[str]
) -> None:
    failed = {
        "name": "val", "state": "failed", "objects": {"wanted": 0, "on_disk": 0, "failed": 1}, "rate_bytes_per_s": 0,
        "bytes": {"wanted": 0, "on_disk": 0}, "eta_s": None,
        "failures": [{"object": "s3://b/val/", "error": "there is no object whose key begins so"}],
    }  # fmt: skip
    none = failed | {"name": "none", "objects": {"wanted": 3, "on_disk": 0, "failed": 3}}
    begun = failed | {"name": "begun", "state": "running", "failures": []}
    with Proxy(bucket) as proxy, page_of(proxy) as page:
        page.locator("#datasets", has_text="Start a job with AWS_ENDPOINT_URL set to the S3 port").wait_for()
        for section in ("#cluster", "#tenants-section", "#sizes-section", "#warm-section"):
            assert page.locator(section).is_hidden(), section
        assert page.locator("#total-peer").count() == 0
        for tile, words in (
            ("#hit-note", "nothing served yet"), ("#now-note", "the bucket sends nothing"), ("#saved", "nothing yet"),
            ("#window-note", "nothing fetched ahead so far"), ("#disk-note", "of 1.1 GB, no block"),
            ("#verdict", "Too early to say: too few reads of late."), ("#chart-top", "1.0 kB/s"),
            ("#chart-middle", "500 B/s"),
        ):  # fmt: skip
            assert text(page, tile) == words
        override(page, proxy.status() | {"warmups": [failed, none, begun]})
        assert page.locator(".job p span").all_inner_texts() == [
            "failed: no object", "failed: none of 3 objects, 3 failed", "running: looks for the objects",
        ]  # fmt: skip
        assert "s3://b/val/: there is no object whose key begins so" in page.locator(".job small").first.inner_text()
        assert complaints == []
        page.unroute("**/status")
        proxy.stop()
        page.locator("#state", has_text="not reachable").wait_for()
    complaints.clear()


def test_each_word_of_the_page_has_one_meaning(page: Page) -> None:
    """`Still arriving` beside a sum since the start would say that so many bytes are under way."""
    shown = text(page, "main").lower()
    assert "while being fetched" in shown
    for word in ("arriv", "coming", "in vain", "did not tell"):
        assert word not in shown, word


def test_tenants_are_shown_with_their_shares(bucket: Bucket, tmp_path: Path, page_of: PageOf) -> None:
    bucket.store(tenants.NAME, {"team/a": SHARD, "other/a": SHARD})
    file, team = tmp_path / "clients.toml", tenants.TEAM[0]
    file.write_text(
        tenants.CLIENTS.replace(f'"{team}"', f'"{team}"\ncache_share = 0.5\nline_share = "25%"').replace(
            '"nobody"', json.dumps(HOSTILE)
        )
    )
    with Proxy(bucket, auth="sigv4", clients=file, cache_size="1MB", block_size="64KiB") as proxy:
        for keys, name in ((tenants.TEAM, "team"), (tenants.OTHER, "other")):
            signed = tenants.wire(proxy, keys, "GET", f"/{tenants.NAME}/{name}/a")
            assert tenants.answer_to(proxy, signed).body == SHARD
            proxy.settle()
        with page_of(proxy) as page:
            rows = page.locator("#tenants tr")
            rows.nth(2).wait_for()
            for name in ("team", "other"):
                row = page.locator("#tenants tr", has=page.locator(f"td:first-child:text-is('{name}')"))
                assert row.locator(f'td[data-raw="{len(SHARD)}"]').count() == 1
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
            override(page, status | {"tenants": shares})
            beyond = page.locator("#tenants tr", has_text="team")
            assert "beyond its share of 5.0 %" in beyond.locator("small").inner_text()
            assert "2.0 MB/s" in beyond.inner_text()


def test_the_members_of_a_cluster_are_shown_one_that_goes_and_a_name_that_is_used_twice(
    bucket: Bucket, tmp_path: Path, page_of: PageOf
) -> None:
    body = bytes(range(256)) * 4096
    bucket.store(NAME, {"cluster.bin": body})
    with Nodes(bucket, tmp_path, 2, block_size=str(64 * 1024)) as nodes:
        assert ask(nodes[0].address, "GET", f"/{NAME}/cluster.bin").body == body
        until(lambda: sum(nodes[0].status()["served_bytes"].values()) == len(body), "the count of bytes")
        nodes[0].settle()
        with page_of(nodes[0]) as page:
            served = nodes[0].status()["served_bytes"]
            members = page.locator("#members tr")
            members.nth(1).wait_for()
            assert raw(page, "#total-peer") == served["peer"]
            assert text(page, "#cluster-share") == f"{100 * served['peer'] / len(body):.0f} %"
            assert 0 < served["peer"] < len(body)
            assert [row.locator("span").first.inner_text() for row in members.all()] == ["node-1 (this node)", "node-2"]
            assert [row.locator(".member-state").inner_text() for row in members.all()] == ["alive", "alive"]
            came = nodes[0].cluster["members"][1]["bytes_in"]
            assert page.locator(f'#members td[data-raw="{came}"]').count() == 1
            shares = re.compile(r"node-1 has 100 %, node-2 has \d+ %; .* are in more than one")
            page.locator("#shares small", has_text=shares).wait_for()
            nodes[1].stop()
            members.nth(1).locator(".member-state", has_text="leaving").wait_for()
            status = nodes[0].status()
            status["cluster"]["names_used_twice"] = {"twin": ["127.0.0.1:1", "127.0.0.1:2"]}
            override(page, status)
            assert text(page, "#cluster-wrong").startswith(
                "twin is the name of several members: 127.0.0.1:1, 127.0.0.1:2."
            )
