"""The alerting rules under promtool, and a real Prometheus that scrapes a real run."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.child import Child, free_ports
from tests.support.proxy import Proxy
from tests.support.rawhttp import ask

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.bucket import Bucket

ROOT = Path(__file__).parents[2]
RULES = ROOT / "charts" / "outrider" / "files" / "rules.yaml"
NAME = "prometheus"
SHARD = bytes(250) * 4000
DEADLINE_S = 90.0

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool in PATH: `make test-tools` installs it"
)


def promtool(*words: str | Path) -> None:
    done = subprocess.run(
        ["promtool", *(str(word) for word in words)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_rules_and_say_what_they_should(tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path)
    shutil.copy(ROOT / "tests" / "rules" / "rules_test.yaml", tmp_path)
    promtool("check", "rules", "--lint-fatal", tmp_path / "rules.yaml")
    promtool("test", "rules", tmp_path / "rules_test.yaml")


def test_promtool_finds_nothing_wrong_with_the_names(bucket: Bucket) -> None:
    with Proxy(bucket) as proxy:
        host, _, port = proxy.outrider.admin.rpartition(":")
        text = ask((host, int(port)), "GET", "/metrics").body
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def query(port: int, expression: str) -> list[Any]:
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
    return found


def value(port: int, expression: str) -> float:
    found = query(port, expression)
    return float(found[0]["value"][1]) if found else math.nan


def until(condition: Callable[[], bool], meanwhile: Callable[[], None]) -> None:
    """Prometheus scrapes at its own pace: `meanwhile` is repeated until the query has its result."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_at
        meanwhile()


def test_a_real_prometheus_evaluates_the_rules_over_a_real_run(bucket: Bucket, tmp_path: Path) -> None:
    bucket.store(NAME, {f"train-{number:06d}.tar": SHARD for number in range(4)})
    (port,) = free_ports(1)
    with Proxy(bucket) as proxy:
        config = tmp_path / "prometheus.yml"
        config.write_text(json.dumps({
            "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
            "rule_files": [str(RULES)],
            "scrape_configs": [{"job_name": "outrider", "static_configs": [{"targets": [proxy.outrider.admin]}]}],
        }))  # fmt: skip
        prometheus = Child(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}",
             f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"],
            log=tmp_path / "prometheus.log",
        )  # fmt: skip
        try:
            prometheus.wait_until(lambda: is_ready(port), what="prometheus", deadline_s=DEADLINE_S)

            def read() -> None:
                for number in range(4):
                    assert ask(proxy.address, "GET", f"/{NAME}/train-{number:06d}.tar").status == 200
                    proxy.settle()

            until(lambda: value(port, "count(outrider_info)") == 1, read)
            until(lambda: value(port, "outrider:hit_ratio:rate5m") > 0.9, read)
            until(lambda: value(port, "outrider:saved_bytes:rate5m") > 0, read)
            until(lambda: not math.isnan(value(port, "max(outrider:stall:ratio_rate5m)")), read)
            assert 0 <= value(port, "max(outrider:stall:ratio_rate5m)") <= 1
            assert value(port, "outrider:request_errors:ratio_rate5m") == 0
            assert 0 < value(port, "outrider:store_used:ratio") < 1
            assert 0 < value(port, "outrider:first_byte_seconds:p99_rate5m") <= 10
            assert query(port, 'ALERTS{alertstate="firing"}') == []
            until(
                lambda: value(port, "sum(outrider_served_bytes_total)") == proxy.metric("outrider_served_bytes_total"),
                lambda: None,
            )
        finally:
            prometheus.stop()


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
