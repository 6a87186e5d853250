"""The sidecar, in the chart that README.md shows, and the table of values in README.md."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python as helm
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from tests.support.chart import (
    CASES,
    CHART,
    KUBERNETES,
    NAMESPACE,
    README,
    RELEASE,
    Cluster,
    Manifest,
    Values,
    block,
    described,
    manifests,
    secrets_for,
    table,
    with_table,
)


@pytest.fixture(scope="module")
def chart() -> Iterator[helm.Chart]:
    with helm.Chart.load(CHART) as loaded:
        yield loaded


def in_another_chart(values: Values, directory: Path, release: str = RELEASE) -> list[Manifest]:
    """The manifests that README.md's example chart renders, with `values` for this chart."""
    (directory / "templates").mkdir(parents=True)
    for name in ("Chart.yaml", "templates/job.yaml"):
        (directory / name).write_text(block(name))
    shutil.copytree(CHART, directory / "charts" / "outrider")
    with helm.Chart.load(directory) as training:
        texts = training.render({"outrider": values}, name=release, namespace=NAMESPACE)
    return [
        document
        for name, text in texts.items()
        if name.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document is not None
    ]


SIDECARS: dict[str, Values] = {
    "least": {"mode": "sidecar"},
    "case": CASES["sidecar"],
    "keys": {"mode": "sidecar", "credentialsSecret": "minio-keys", "settings": {"origin": "http://minio:9000"}},
}


@pytest.mark.parametrize("values", SIDECARS.values(), ids=SIDECARS)
@pytest.mark.parametrize("kubernetes", KUBERNETES)
def test_another_chart_has_the_sidecar_in_its_job(values: Values, kubernetes: str, tmp_path: Path) -> None:
    rendered = in_another_chart(values, tmp_path / "chart")
    by_kind = {each["kind"]: each for each in rendered if not each["metadata"]["name"].endswith("-dashboard")}
    assert set(by_kind) - {"PrometheusRule"} == {"ConfigMap", "ServiceAccount", "Job"}
    for kind in ("ConfigMap", "ServiceAccount", "Job"):
        kubernetes_validate.validate(by_kind[kind], kubernetes, strict=True)
    spec = by_kind["Job"]["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == 45
    [sidecar] = spec["initContainers"]
    settings = Cluster(spec, sidecar, by_kind["ConfigMap"], secrets_for(values)).start(tmp_path / "root")
    assert (settings.auth, settings.listen, settings.admin) == ("loopback", "127.0.0.1:9480", "127.0.0.1:9481")
    [train] = spec["containers"]
    environ = {entry["name"]: entry["value"] for entry in train["env"]}
    assert environ["AWS_ENDPOINT_URL"] == environ["S3_ENDPOINT_URL"] == f"http://{settings.listen}"
    assert environ["OUTRIDER_STATUS_URL"] == f"http://{settings.admin}"
    for probe, path in (("startupProbe", "/readyz"), ("livenessProbe", "/healthz")):
        assert sidecar[probe]["exec"]["command"] == ["outrider", "doctor", "--probe", f"http://{settings.admin}{path}"]


@pytest.mark.parametrize("values", SIDECARS.values(), ids=SIDECARS)
def test_the_sidecar_is_native_and_restricted_whatever_its_pod_allows(values: Values, tmp_path: Path) -> None:
    [job] = [each for each in in_another_chart(values, tmp_path / "chart") if each["kind"] == "Job"]
    [sidecar] = job["spec"]["template"]["spec"]["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = [mount["name"] for mount in sidecar["volumeMounts"] if not mount.get("readOnly")]
    assert writable == ["outrider-cache"]
    assert sidecar["resources"]["requests"].keys() == {"cpu", "memory"}


def test_a_sidecars_chart_starts_nothing_by_itself(chart: helm.Chart) -> None:
    assert set(manifests(chart, SIDECARS["least"])) == {"ConfigMap", "ServiceAccount"}
    notes = chart.render(SIDECARS["keys"], name=RELEASE, namespace=NAMESPACE)["outrider/templates/NOTES.txt"]
    assert re.findall(rf"-n {NAMESPACE} create secret generic (\S+)", notes) == ["minio-keys"]


def test_the_example_is_rendered_from_the_readme_and_the_template(tmp_path: Path) -> None:
    values = yaml.safe_load(block("values.yaml"))["outrider"]
    made = {each["kind"]: each for each in in_another_chart(values, tmp_path / "chart", release="train")}
    example = yaml.safe_load_all((CHART.parents[1] / "examples/kubernetes/job-with-sidecar.yaml").read_text())
    shown = {each["kind"]: each for each in example}
    assert shown.keys() == made.keys() - {"ServiceAccount"}
    assert re.fullmatch("train-[0-9a-f]{8}", made["Job"]["metadata"].pop("name"))
    assert shown["Job"]["metadata"].pop("name") == "train"
    assert shown["Job"] == made["Job"]
    for each in (shown, made):
        name, [text] = each["ConfigMap"]["metadata"]["name"], each["ConfigMap"]["data"].values()
        assert (name, tomllib.loads(text)) == (
            "train-outrider",
            tomllib.loads(made["ConfigMap"]["data"]["settings.toml"]),
        )


def test_a_changed_job_is_another_one_and_so_are_changed_settings(tmp_path: Path) -> None:
    def name(number: int, **values: Any) -> str:
        made = in_another_chart({"mode": "sidecar", **values}, tmp_path / str(number))
        [job] = [each for each in made if each["kind"] == "Job"]
        found: str = job["metadata"]["name"]
        return found

    names = [name(1), name(2, image={"tag": "another"}), name(3, settings={"freshness": "immutable"})]
    assert len(set(names)) == 3
    assert name(4) == names[0]


# -- its README -----------------------------------------------------------------------------------------------------


def test_the_table_of_values_is_that_of_values_yaml() -> None:
    assert README.read_text() == with_table(README.read_text()), "run make chart-readme"


def test_each_value_is_described() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    texts = described()

    def leaves(found: Any, path: str) -> Iterator[str]:
        if texts.get(path) and not any(other.startswith(f"{path}.") and texts[other] for other in texts):
            yield path
        elif isinstance(found, dict) and found:
            for name, value in found.items():
                yield from leaves(value, f"{path}.{name}".strip("."))
        else:
            yield path

    assert [path for path in leaves(values, "") if not texts[path]] == []
    assert "|" not in "".join(texts.values())
    assert table().count("\n") > len(values)


def test_the_readme_names_the_endpoint_that_the_notes_do(chart: helm.Chart) -> None:
    notes = chart.render({}, name="outrider", namespace=NAMESPACE)["outrider/templates/NOTES.txt"]
    [endpoint] = re.findall(r"AWS_ENDPOINT_URL=(\S+)\n", notes)
    assert f"`AWS_ENDPOINT_URL={endpoint}`" in README.read_text()
