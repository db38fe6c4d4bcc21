"""What the kustomize overlays render is valid for KubeRay's schemas, for Serve's, and for our configuration."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from cluster.config import Config, load_config

ROOT = Path(__file__).parents[2]
KUSTOMIZE = ROOT / "deploy" / "kustomize"
SCHEMAS = ROOT.parent / "shared" / "data" / "kuberay"
OVERLAYS = sorted(path.parent.name for path in KUSTOMIZE.glob("overlays/*/kustomization.yaml"))
IMAGE = re.compile(r"outrider:(?P<tag>[\w.]+)$")


@pytest.fixture(scope="module", params=OVERLAYS)
def rendered(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: overlays cannot be rendered")
    folder = KUSTOMIZE / "overlays" / request.param
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def ray_service(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [thing for thing in objects if thing["kind"] == "RayService"]
    return found


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    path = SCHEMAS / "ray.io_rayservices.yaml"
    if not path.is_file():
        pytest.skip(f"no KubeRay schemas at {path}: manifests are not validated against them")
    versions = yaml.safe_load(path.read_text())["spec"]["versions"]
    (stored,) = [entry for entry in versions if entry["storage"]]
    closed: dict[str, Any] = strict(stored["schema"]["openAPIV3Schema"])
    closed["properties"]["metadata"] = {}  # the schema leaves it to Kubernetes
    return closed


def strict(node: Any) -> Any:
    """A structural schema in which unknown fields are mistakes: Kubernetes would drop them in silence."""
    if isinstance(node, list):
        return [strict(entry) for entry in node]
    if not isinstance(node, dict):
        return node
    if node.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    closed = {key: strict(value) for key, value in node.items()}
    is_open = node.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in node
    if isinstance(node.get("properties"), dict) and node.get("type") == "object" and not is_open:
        closed["additionalProperties"] = False
    return closed


def serve_config(objects: list[dict[str, Any]]) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(ray_service(objects)["spec"]["serveConfigV2"])
    return config


def outrider_config(objects: list[dict[str, Any]]) -> Config:
    (application,) = serve_config(objects)["applications"]
    return load_config(dict(application["args"]), environ={})


def pod_templates(service: dict[str, Any]) -> Iterator[dict[str, Any]]:
    cluster = service["spec"]["rayClusterConfig"]
    yield cluster["headGroupSpec"]["template"]["spec"]
    for group in cluster["workerGroupSpecs"]:
        yield group["template"]["spec"]


def test_there_are_overlays() -> None:
    assert {"cpu", "one-node", "mixed-gpus"} <= {*OVERLAYS}


def test_the_service_is_what_the_operator_takes(rendered: list[dict[str, Any]], schema: dict[str, Any]) -> None:
    jsonschema.validate(ray_service(rendered), schema)


@pytest.mark.parametrize(("path", "value"), [
    (("spec", "serveConfigV3"), "x"),
    (("spec", "rayClusterConfig", "workerGroupSpecs", 0, "minReplica"), 1),
    (("spec", "rayClusterConfig", "workerGroupSpecs", 0, "minReplicas"), "one"),
    (("spec", "rayClusterConfig", "headGroupSpec", "template", "spec", "containers", 0, "imagePullPolic"), "x"),
    (("spec", "rayClusterConfig", "authOptions", "mode"), "tokens"),
])
def test_a_bad_field_fails(
    rendered: list[dict[str, Any]], schema: dict[str, Any], path: tuple[str | int, ...], value: object
) -> None:
    broken = json.loads(json.dumps(ray_service(rendered)))
    node: Any = broken
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema)


def test_the_serve_config_parses_imports_and_names_only_known_settings(rendered: list[dict[str, Any]]) -> None:
    content = serve_config(rendered)
    parsed = ServeDeploySchema.model_validate(content)
    assert {*content} <= {*ServeDeploySchema.model_fields}
    (application,) = parsed.applications
    module, _, name = application.import_path.partition(":")
    assert callable(getattr(importlib.import_module(module), name))
    for function in content["grpc_options"]["grpc_servicer_functions"]:
        module, _, name = function.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))


def test_every_tier_finds_a_group_whose_nodes_have_room_for_its_replicas(rendered: list[dict[str, Any]]) -> None:
    config, service = outrider_config(rendered), ray_service(rendered)
    groups = {group["groupName"]: group for group in service["spec"]["rayClusterConfig"]["workerGroupSpecs"]}
    for tier in config.tiers:
        group = groups[tier.name]
        assert tier.resources.custom == {tier.name: 1}
        resources = json.loads(json.loads(group["rayStartParams"]["resources"]))
        assert tier.name in resources
        (container,) = group["template"]["spec"]["containers"]
        limits = container["resources"]["limits"]
        assert int(limits.get("nvidia.com/gpu", 0)) >= tier.resources.num_gpus * tier.num_ranks
        assert float(limits["cpu"]) >= tier.resources.num_cpus * tier.num_ranks
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert group["maxReplicas"] >= tier.replicas.max or tier.resources.num_gpus == 0


def test_drafts_may_go_to_none_and_targets_may_not(rendered: list[dict[str, Any]]) -> None:
    draft, target = outrider_config(rendered).tiers
    assert draft.replicas.min == 0
    assert target.replicas.min >= 1


def test_image_ray_and_pins_agree(rendered: list[dict[str, Any]]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    service = ray_service(rendered)
    (ray_pin,) = [entry for entry in project["dependencies"] if entry.startswith("ray[")]
    assert ray_pin == f"ray[serve]=={service['spec']['rayClusterConfig']['rayVersion']}"
    assert version("ray") == service["spec"]["rayClusterConfig"]["rayVersion"]
    for spec in pod_templates(service):
        for container in spec["containers"]:
            tag = IMAGE.match(container["image"])
            assert tag is not None
            assert tag["tag"] == project["version"]


def test_pods_run_without_privileges_and_hold_no_secret(rendered: list[dict[str, Any]]) -> None:
    for spec in pod_templates(ray_service(rendered)):
        assert spec["securityContext"]["runAsNonRoot"]
        for container in spec["containers"]:
            context = container["securityContext"]
            assert not context["allowPrivilegeEscalation"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            for variable in container["env"]:
                if "TOKEN" in variable["name"] or "KEY" in variable["name"]:
                    assert "secretKeyRef" in variable["valueFrom"]
    assert not [thing for thing in rendered if thing["kind"] == "Secret"]


def test_only_labelled_namespaces_reach_the_grpc_port(rendered: list[dict[str, Any]]) -> None:
    (policy,) = [thing for thing in rendered if thing["kind"] == "NetworkPolicy"]
    for rule in policy["spec"]["ingress"]:
        if "ports" in rule:
            assert all(peer["namespaceSelector"] == {} and "podSelector" in peer or peer["namespaceSelector"]
                       for peer in rule["from"])
    open_to_gateway = [rule for rule in policy["spec"]["ingress"]
                       if {"port": 9000, "protocol": "TCP"} in rule.get("ports", [])]
    assert len(open_to_gateway) == 1


def test_the_image_runs_as_nobody_special_and_pins_its_base() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    assert re.search(r"^USER 1000", text, re.MULTILINE)
    assert re.search(r"^ARG PYTHON=3\.11\.\d+$", text, re.MULTILINE)
    assert text.count("FROM python:${PYTHON}") == 2
    assert "ARG RAY" not in text  # its version comes from pyproject.toml alone
