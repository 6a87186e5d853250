"""The task definitions of examples/serverless: valid by the service models of botocore, and agreeing with Outrider."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from botocore.session import get_session
from botocore.validate import ParamValidator

from outrider.settings import Settings
from tests.support.pages import ROOT

HERE = ROOT / "examples" / "serverless"
CALLS = {
    "ecs-task.json": ("ecs", "RegisterTaskDefinition"),
    "batch-job.json": ("batch", "RegisterJobDefinition"),
    "sagemaker-training-job.json": ("sagemaker", "CreateTrainingJob"),
}


def test_each_task_definition_is_named_here() -> None:
    assert {path.name for path in HERE.glob("*.json")} == CALLS.keys()


@pytest.mark.parametrize("name", CALLS)
def test_a_task_definition_is_what_its_service_takes(name: str) -> None:
    service, operation = CALLS[name]
    shape = get_session().get_service_model(service).operation_model(operation).input_shape
    task = json.loads((HERE / name).read_text())
    assert not ParamValidator().validate(task, shape).generate_report()
    assert ParamValidator().validate({**task, "another": 1}, shape).generate_report()


def test_in_ecs_the_training_waits_until_the_proxy_is_healthy_and_is_stopped_before_it() -> None:
    task = json.loads((HERE / "ecs-task.json").read_text())
    proxy, train = task["containerDefinitions"]
    assert train["dependsOn"] == [{"containerName": proxy["name"], "condition": "HEALTHY"}]
    assert proxy["stopTimeout"] > train["stopTimeout"]
    assert proxy["stopTimeout"] <= 120
    health = re.search(r"^HEALTHCHECK .* CMD (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert health is not None
    assert proxy["healthCheck"]["command"] == ["CMD", *json.loads(health[1])]


def containers() -> list[tuple[str, list[str], dict[str, Any]]]:
    """Each container's file, words and environment."""
    ecs = json.loads((HERE / "ecs-task.json").read_text())["containerDefinitions"]
    found = [("ecs", each["command"], {one["name"]: one["value"] for one in each["environment"]}) for each in ecs]
    job = yaml.safe_load((HERE / "cloud-run-job.yaml").read_text())
    for each in job["spec"]["template"]["spec"]["template"]["spec"]["containers"]:
        words = [*each.get("command", ()), *each["args"]]
        found.append(("cloud run", words, {one["name"]: one.get("value") for one in each.get("env", ())}))
    batch = json.loads((HERE / "batch-job.json").read_text())["containerProperties"]
    found.append(("batch", batch["command"], {}))
    algorithm = json.loads((HERE / "sagemaker-training-job.json").read_text())["AlgorithmSpecification"]
    found.append(("sagemaker", [*algorithm["ContainerEntrypoint"], *algorithm["ContainerArguments"]], {}))
    return found


@pytest.mark.parametrize(("where", "words", "environment"), containers())
def test_flags_and_the_address_are_those_of_outrider(where: str, words: list[str], environment: dict[str, Any]) -> None:
    if "AWS_ENDPOINT_URL" in environment:
        assert environment["AWS_ENDPOINT_URL"] == f"http://{Settings.model_fields['listen'].default}"
    if words[0] in ("serve", "outrider"):
        own = words[: words.index("--")] if "--" in words else words
        flags = [word.removeprefix("--").replace("-", "_") for word in own if word.startswith("--")]
        assert flags
        assert set(flags) <= Settings.model_fields.keys()
