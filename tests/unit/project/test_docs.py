"""The documentation is consistent: links, headings, code blocks, the settings page, and the names that pages quote."""

from __future__ import annotations

import ast
import inspect
import json
import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import yaml

from outrider import settings
from outrider.cli.serve import serve
from outrider.engine.operator.metrics import OperatorMetrics
from outrider.metrics import Metrics
from tests.frameworks.catalogue import WRITTEN
from tests.support import generated_pages
from tests.support.chart import README as CHART_README
from tests.support.chart import block as chart_block
from tests.support.pages import ROOT, anchors_of, blocks_of, example_manifests, links_of, pages
from tests.support.shellpage import SHELLS

OTHERS = [
    path
    for path in (
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *ROOT.glob("*/README.md"),
        *ROOT.glob("charts/*/README.md"),
    )
    if path not in pages()
]
METRIC_ENDINGS = {"counter": ("_total",), "gauge": ("",), "histogram": ("", "_bucket", "_sum", "_count")}
KUBERNETES_PAGE = ROOT / "docs" / "kubernetes.md"
LANGUAGES = {"sh", "console", "text", "python", "toml", "json", "yaml", "mermaid", "promql"}
KNOWN_MARKS = {"no-run", "template"}
KNOWN_BEGINNINGS = ("if=", "run=", "writes=")

any_page = pytest.mark.parametrize("page", [*pages(), *OTHERS], ids=lambda page: str(page.relative_to(ROOT)))


@any_page
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in links_of(page):
        target, _, fragment = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (fragment and path.suffix == ".md" and fragment not in anchors_of(path)):
            broken.append(link)
    assert broken == []


def test_every_page_is_in_the_index() -> None:
    linked = {(ROOT / "docs" / link.partition("#")[0]).resolve() for link in links_of(ROOT / "docs" / "README.md")}
    assert [page.name for page in pages() if page.parent.name == "docs" and page.name != "README.md"
            and page not in linked] == []  # fmt: skip


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_names_its_language_and_is_valid(page: Path) -> None:
    for block in blocks_of(page):
        assert block.language in LANGUAGES, block.name
        assert all(mark in KNOWN_MARKS or mark.startswith(KNOWN_BEGINNINGS) for mark in block.marks), block.name
        if block.language == "python":
            compile(block.text, block.name, "exec", flags=ast.PyCF_ONLY_AST)
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "yaml" and "template" not in block.marks:
            list(yaml.safe_load_all(block.text))


def test_no_block_is_left_out() -> None:
    """tests/server/test_docs.py runs commands, this module loads TOML and compiles Python, and
    tests/unit/chart/test_chart_sidecar.py renders YAML, and tests/unit/operator/test_wishes.py reads the one of a pod.
    `make frameworks` runs those of tests/frameworks. Blocks of `text` are for people alone."""
    # An environment holds hundreds of thousands of files.
    folders = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    every = {*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*.md"))}
    assert {path for path in every - {*pages(), WRITTEN} if list(blocks_of(path))} == set()
    rendered = {chart_block(name) for name in ("Chart.yaml", "values.yaml", "templates/job.yaml")}
    languages = {*SHELLS, "toml", "python", "text"}
    left_out = {
        block.name
        for page in [*pages(), *example_manifests()]
        for block in blocks_of(page)
        if block.language not in languages
        and not (page == CHART_README and block.text in rendered)
        and not (page == KUBERNETES_PAGE and block.language == "yaml")
    }
    assert left_out == set()


# Commands in the text of the pages, each with the test that runs it, or the reason why no test can.
# tests/server/test_docs.py runs `kubectl` and `helm`.
INLINE = {
    "docker push": "needs a container engine",
    "docker run --device /dev/fuse --cap-add SYS_ADMIN": "needs a container engine",
    'pip install ".[examples]"': "test_everything_that_pip_is_to_install_exists",
    "pip install '.[demo]'": "test_everything_that_pip_is_to_install_exists",
    "pip install '.[plot]'": "test_everything_that_pip_is_to_install_exists",
    "make image IMAGE=registry.example.org/outrider:0.2.0": "test_the_image_has_the_charts_tag",
    "pip install --require-hashes -r requirements.lock": "test_everything_that_pip_is_to_install_exists",
    "pip install .": "tests/server/test_image.py",
    "systemctl disable --now nginx": "needs systemd, and root",
}


def test_commands_in_the_text_are_known() -> None:
    spans = {
        span
        for page in [*pages(), *OTHERS]
        for span in re.findall(r"`([^`\n]+)`", page.read_text())
        if span.startswith(("docker ", "pip ", "systemctl ", "apt-get ", "make image "))
    }
    assert spans == INLINE.keys()


def test_the_image_has_the_charts_tag() -> None:
    version = yaml.safe_load((CHART_README.parent / "Chart.yaml").read_text())["appVersion"]
    assert f"make image IMAGE=registry.example.org/outrider:{version}" in INLINE


def test_everything_that_pip_is_to_install_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {extra for command in INLINE for extra in re.findall(r"\.\[(\w+)\]", command)} <= extras.keys()
    assert (ROOT / "requirements.lock").is_file()


def test_the_settings_page_is_up_to_date() -> None:
    assert generated_pages.SETTINGS_PAGE.read_text() == generated_pages.settings_page(), "run `make docs`"


def test_every_setting_is_on_its_page_with_its_flag() -> None:
    text = generated_pages.SETTINGS_PAGE.read_text()
    assert all(f"| `{name}` |" in text for name in settings.Settings.model_fields)
    assert "| `cache_size` | `--cache-size` | `OUTRIDER_CACHE_SIZE` | `80%` |" in text
    assert "| `admin_token` |  | `OUTRIDER_ADMIN_TOKEN` |" in text


def test_every_flag_and_variable_that_the_proxy_or_a_page_names_exists() -> None:
    flags = {name.replace("_", "-") for name in inspect.signature(serve).parameters}
    variables = {name.upper() for name in settings.Settings.model_fields} | {"CONFIG", "STATUS_URL"}
    texts = {path: path.read_text() for path in (ROOT / "proxy" / "outrider").rglob("*.py")}
    unknown = {
        f"{path.name}: --{name}"
        for path, text in texts.items()
        if path.relative_to(ROOT / "proxy/outrider").parts[0] in ("core", "http", "adapters", "settings")
        for name in re.findall(r"--([a-z]+(?:-[a-z]+)*)", text)
        if name not in flags
    }
    texts |= {page: page.read_text() for page in pages()}
    unknown |= {
        f"{path.name}: OUTRIDER_{name}"
        for path, text in texts.items()
        for name in re.findall(r"(?<!_)OUTRIDER_([A-Z0-9_]*[A-Z])", text)
        # The exceptions are knobs of the tests, a placeholder for any name, and two names that a page shows as wrong.
        if name not in variables
        and not name.startswith(("TEST_", "DIFFERENTIAL"))
        and name not in {"CACHESIZE", "NAME", "PORT"}
    }
    assert unknown == set()


def test_toml_on_the_pages_is_settings_that_load_or_a_clients_file(tmp_path: Path) -> None:
    toml = [block for page in pages() for block in blocks_of(page) if block.language == "toml"]
    assert toml
    for number, block in enumerate(toml):
        file = tmp_path / f"{number}.toml"
        file.write_text(block.text)
        if "[[client]]" in block.text:
            assert settings.load({"auth": "sigv4", "clients": file}, environ={}).known_clients
        else:
            settings.load({}, file, environ={})


def test_every_event_that_the_operations_page_names_is_logged() -> None:
    section = (ROOT / "docs" / "operations.md").read_text().partition("| event | level |")[2]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    source = "".join(path.read_text() for path in (ROOT / "proxy" / "outrider").rglob("*.py"))
    named = [event for row in rows for event in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert len(named) > 10
    assert [event for event in named if f'"{event}"' not in source] == []


def test_every_warning_and_error_of_the_proxy_is_on_the_operations_page() -> None:
    section = (ROOT / "docs" / "operations.md").read_text().partition("| event | level |")[2]
    root = ROOT / "proxy" / "outrider"
    # The mount and the operator are other programs, with logs of their own.
    files = [path for path in root.rglob("*.py") if not {"mount", "operator"} & {*path.relative_to(root).parts}]
    logged = {
        str(call.args[0].value)
        for path in files
        if path.name != "operator_composition.py"
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func) in ("log.warning", "log.error", "log.exception")
        and isinstance(call.args[0], ast.Constant)
    }
    assert len(logged) > 30
    assert {event for event in logged if f"`{event}`" not in section} == set()


def test_every_metric_that_a_page_names_exists() -> None:
    families = [*Metrics().registry.collect(), *OperatorMetrics().registry.collect()]
    known = {sample.name for family in families for sample in family.samples}
    # A metric with labels has no sample before its first count; a histogram has three.
    for family in families:
        known |= {family.name + ending for ending in METRIC_ENDINGS[family.type]}
    unknown = {
        f"{page.name}: {name}"
        for page in pages()
        if page.name != "metrics.md"  # written from the code, recording rules and all
        for name in re.findall(r"`(outrider_[a-z_]+)", page.read_text())
        if name not in known and not name.startswith("outrider_sdk")
    }
    assert unknown == set()


def test_contributing_has_a_line_for_each_package() -> None:
    """Each package is named there. For a package that only holds packages, these and the modules beside them are
    named."""
    root = ROOT / "proxy" / "outrider"
    rows = (ROOT / "CONTRIBUTING.md").read_text().partition("| package of `proxy/outrider` |")[2].partition("###")[0]
    firsts = [row.split("|")[1] for row in rows.splitlines() if row.startswith("|")]
    named = {name for first in firsts for name in re.findall(r"`([^`]+)`", first)}
    modules = {path.relative_to(root).as_posix() for path in root.rglob("*.py")} - {"__main__.py"}
    packages = {f"{Path(module).parent}/" for module in modules}
    assert named - modules - packages == set()
    assert {
        module
        for module in modules
        if Path(module).name != "__init__.py" and not named & {module, f"{Path(module).parent}/"}
    } == set()


def test_every_module_that_a_page_names_exists() -> None:
    """A module is named as `core/cache/freshness`, with or without its ending; a test is named from tests/ on."""
    root = ROOT / "proxy" / "outrider"
    unknown = {
        f"{page.name}: {name}"
        for page in [*pages(), *OTHERS]
        for name in re.findall(
            r"`((?:core|engine|http|adapters|cli|simulator)/[a-z0-9_/]+)(?:\.py)?`", page.read_text()
        )
        if not any((place / name).is_dir() or (place / f"{name}.py").is_file() for place in (root, ROOT / "tests"))
    }
    assert unknown == set()


def test_every_test_that_a_page_names_exists() -> None:
    """By its function alone."""
    named = {name for page in [*pages(), *OTHERS] for name in re.findall(r"`(test_[a-z0-9_]+)`", page.read_text())}
    found = (re.findall(r"def (test_[a-z0-9_]+)\(", path.read_text()) for path in (ROOT / "tests").rglob("test_*.py"))
    assert named - set(chain.from_iterable(found)) == set()


def test_every_test_that_the_page_of_s3_names_exists() -> None:
    """By its file, and by the beginning of its function."""
    page = (ROOT / "docs" / "s3-compatibility.md").read_text()
    missing = []
    for file, names in re.findall(r"`([a-z0-9_/]+\.py)`(?::((?:,?\s+`[^`]+`)+))?", page):
        source = (ROOT / "tests" / file).read_text()
        missing += [f"{file}: {name}" for name in re.findall(r"`([a-z0-9_]+_[a-z0-9_]+)…?`", names)
                    if f"def test_{name}" not in source]  # fmt: skip
    assert missing == []


def test_every_page_names_its_audience() -> None:
    """The audience stands in the first line below the title."""
    of_docs = [page for page in pages() if page != ROOT / "README.md"]
    assert [page.name for page in of_docs if not page.read_text().splitlines()[2].startswith("For ")] == []


def test_headings_are_linked_to_as_github_does(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `two`\n\n```sh\n# no heading\n```\n\n## 503 SlowDown: why?\n## Twice\n## Twice\n")
    assert anchors_of(page) == {"one-two", "503-slowdown-why", "twice", "twice-1"}


def test_links_in_code_are_ignored(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[a](b.md) `[c](d.md)`\n```text\n[e](f.md)\n```\n![g](h.svg)\n")
    assert list(chain(links_of(page))) == ["b.md", "h.svg"]
