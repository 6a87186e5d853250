"""Pods that ask for it get the address of the cache from the API server itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

import helm_python as helm
import pytest

from tests.support.chart import CASES, NAMESPACE, RELEASE, Manifest, documents, in_cluster

VALUES = CASES["inject-endpoint"]


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[helm.Chart]:
    with in_cluster(tmp_path_factory.mktemp("cluster") / "chart") as loaded:
        yield loaded


def of_admission(chart: helm.Chart, release: str = RELEASE) -> dict[str, Manifest]:
    found = documents(chart, VALUES, release)
    return {each["kind"]: each for each in found if each["kind"].startswith("MutatingAdmission")}


def test_only_new_pods_that_ask_for_it_are_changed_and_none_is_refused(chart: helm.Chart) -> None:
    made = of_admission(chart)
    spec = made["MutatingAdmissionPolicy"]["spec"]
    [rule] = spec["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"], rule["scope"]) == (["pods"], ["CREATE"], "Namespaced")
    assert spec["matchConstraints"]["objectSelector"] == {"matchLabels": {"outrider.dev/inject": "endpoint"}}
    assert (spec["failurePolicy"], spec["reinvocationPolicy"]) == ("Ignore", "IfNeeded")
    kept_out, *asked = spec["matchConstraints"]["namespaceSelector"]["matchExpressions"]
    assert (kept_out["operator"], "kube-system" in kept_out["values"]) == ("NotIn", True)
    selector = VALUES["injectEndpoint"]["namespaceSelector"]
    assert asked == selector["matchExpressions"]
    assert spec["matchConstraints"]["namespaceSelector"]["matchLabels"] == selector["matchLabels"]
    # Without a binding a policy does nothing.
    binding = made["MutatingAdmissionPolicyBinding"]
    assert binding["spec"] == {"policyName": made["MutatingAdmissionPolicy"]["metadata"]["name"]}


def test_each_container_gets_the_address_that_the_notes_give_to_jobs(chart: helm.Chart) -> None:
    mutations = of_admission(chart)["MutatingAdmissionPolicy"]["spec"]["mutations"]
    notes = chart.render(VALUES, name=RELEASE, namespace=NAMESPACE)["outrider/templates/NOTES.txt"]
    address = re.search(r"AWS_ENDPOINT_URL=(\S+)", notes)
    assert address is not None
    for kind, mutation in zip(("containers", "initContainers"), mutations, strict=True):
        assert mutation["patchType"] == "ApplyConfiguration"
        expression = " ".join(mutation["applyConfiguration"]["expression"].split())
        # A pod without init containers stays as it is.
        assert expression.startswith(f"!has(object.spec.{kind}) ? Object{{}} : Object{{spec: Object.spec{{{kind}: ")
        assert f"Object.spec.{kind}{{name: c.name, env: [" in expression
        set_to = dict(re.findall(rf'Object\.spec\.{kind}\.env{{name: "(\w+)", value: "([^"]+)"}}', expression))
        assert set_to == dict.fromkeys(("AWS_ENDPOINT_URL", "S3_ENDPOINT_URL"), address[1])
        # A container's own choice wins: applied to a name that is there, the value would be replaced.
        own = re.search(r"!c\.env\.exists\(e, e\.name in \[([^]]+)\]", expression)
        assert own is not None
        assert set_to.keys() < set(re.findall(r"\w+", own[1]))
        assert expression.count("{") == expression.count("}")


def test_two_releases_of_one_name_share_no_object_of_the_cluster(chart: helm.Chart) -> None:
    names = set()
    for release, namespace in (("a", "b"), ("a", "c"), ("b", "b")):
        text = chart.render(VALUES, name=release, namespace=namespace)["outrider/templates/injectendpoint.yaml"]
        names |= {f"{namespace}: {name}" for name in re.findall(r"\n  name: (\S+)", text)}
    assert names == {"b: a-outrider.b", "c: a-outrider.c", "b: b-outrider.b"}


@pytest.mark.parametrize(("kubernetes", "is_made"), [("1.35", False), ("1.36", True)])
def test_an_older_kubernetes_gets_none_and_a_note(
    kubernetes: str, is_made: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with in_cluster(tmp_path_factory.mktemp("cluster") / "chart", kubernetes=kubernetes) as older:
        assert bool(of_admission(older)) is is_made
        notes = older.render(VALUES, name=RELEASE, namespace=NAMESPACE)["outrider/templates/NOTES.txt"]
    assert ("NOT INJECTED" in notes) is not is_made


def test_by_default_no_pod_is_changed(chart: helm.Chart) -> None:
    assert not [each for each in documents(chart, {}) if each["kind"].startswith("Mutating")]
