"""Documentation, dashboard and alerts name only metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from outrider.metrics import Metrics
from tests.support.generated_pages import all_metrics, metrics_page, sample_names

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FILES = ROOT / "charts" / "outrider" / "files"
_NAME = re.compile(r"\boutrider[a-z0-9_:]+")


def test_the_page_of_metrics_follows_the_code() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == metrics_page(), "run `make docs`"


def test_every_exported_metric_is_on_the_page() -> None:
    exported = {family.name for family in text_string_to_metric_families(Metrics().text().decode())}
    known = {name.removesuffix("_total") for name in all_metrics()}
    assert {name for name in exported if not name.endswith("_created")} == known


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FILES / "rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def recorded() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def test_rules_query_metrics_that_exist() -> None:
    for rule in rules():
        names = set(_NAME.findall(rule["expr"]))
        assert names, rule
        assert names <= sample_names() | recorded(), rule
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("info", "warning", "critical")
            assert set(rule["annotations"]) == {"summary", "description"}


def queries(board: Any) -> Iterator[str]:
    for panel in board["panels"]:
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            yield target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def test_the_grafana_dashboard_queries_metrics_that_exist() -> None:
    board = json.loads((FILES / "dashboard.json").read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) >= 12
    for query in queries(board):
        names = set(_NAME.findall(query))
        assert names, query
        assert names <= sample_names() | recorded(), query


def test_no_two_panels_overlap() -> None:
    cells = [
        (x, y)
        for panel in json.loads((FILES / "dashboard.json").read_text())["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_the_grafana_dashboard_has_the_words_of_the_other_pages() -> None:
    text = (FILES / "dashboard.json").read_text()
    assert "evicted unread" in text
    for word in ("in vain", "arriving", "heard"):
        assert word not in text, word


def test_every_alert_has_a_test() -> None:
    tested = {
        case["alertname"]
        for group in yaml.safe_load((ROOT / "tests" / "rules" / "rules_test.yaml").read_text())["tests"]
        for case in group.get("alert_rule_test", [])
        if case["exp_alerts"]
    }
    assert tested == {rule["alert"] for rule in rules() if "alert" in rule}
