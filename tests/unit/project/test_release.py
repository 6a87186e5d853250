"""One version in all places, so that `make release` finds nothing to refuse but its own checks."""

from __future__ import annotations

from outrider import __version__
from tests.support.release import ROOT, disagreements, unreleased, versions


def test_the_version_is_the_same_in_package_sdk_chart_changelog_and_pages() -> None:
    found = versions()
    assert disagreements(found) == []
    assert found["proxy/outrider/__init__.py"] == __version__
    assert {place.partition(",")[0] for place in found} >= {
        "sdk/outrider_sdk/__init__.py", "charts/outrider/Chart.yaml", "appVersion", "CHANGELOG.md",
        "docs/kubernetes.md", "examples/kubernetes/job-with-sidecar.yaml",
    }  # fmt: skip


def test_a_place_with_another_version_is_named() -> None:
    assert disagreements({"proxy/outrider/__init__.py": "1.2.0", "CHANGELOG.md": "1.1.0", "appVersion": "1.2.0"}) == [
        "CHANGELOG.md has 1.1.0, and the package 1.2.0"
    ]


def test_changes_that_have_no_version_are_seen() -> None:
    assert unreleased("# Changelog\n\n## Unreleased\n\n### Added\n\n- A thing.\n\n## 0.1.0 - 2026-01-01\n")
    assert not unreleased("# Changelog\n\n## Unreleased\n\n## 0.1.0 - 2026-01-01\n\n- A thing.\n")
    assert (ROOT / "CHANGELOG.md").read_text().count("\n## Unreleased\n") <= 1
