"""What the kustomize overlays render is valid for KubeRay, the Gateway API and Serve, and for our configuration."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from cluster.app import pool_options
from cluster.config import Config, ConfigError, load_config
from cluster.edge import haproxy
from tests.gateway_api import SCHEMAS as GATEWAY_API

ROOT = Path(__file__).parents[2]
KUSTOMIZE = ROOT / "deploy" / "kustomize"
SCHEMAS = ROOT.parent / "shared" / "data" / "kuberay"
OVERLAYS = sorted(path.parent.name for path in KUSTOMIZE.glob("overlays/*/kustomization.yaml"))
OTHERS = {  # kinds that a cluster with KubeRay alone does not know, by the overlays that need them
    "cpu": set[str](), "one-node": set[str](), "mixed-gpus": {"gateway.networking.k8s.io", "monitoring.coreos.com"},
}
IMAGE = re.compile(r"outrider:(?P<tag>[\w.]+)$")


@pytest.fixture(scope="module", params=OVERLAYS)
def rendered(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return render(request.param)


def render(overlay: str) -> list[dict[str, Any]]:
    """The objects of an overlay."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: overlays cannot be rendered")
    folder = KUSTOMIZE / "overlays" / overlay
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


def test_pools_scale_by_policies_that_the_controller_can_make(rendered: list[dict[str, Any]]) -> None:
    config = outrider_config(rendered)
    for index, tier in enumerate(config.tiers):
        if not tier.replicas.vary:
            continue
        scaling = pool_options(config, index)["autoscaling_config"]
        assert (scaling.min_replicas, scaling.max_replicas) == (tier.replicas.min, tier.replicas.max)
        assert callable(scaling.policy.get_policy()(**scaling.policy.policy_kwargs))


@pytest.mark.parametrize(("path", "value"), [
    (("tiers", 0, "replica"), {"min": 0}),
    (("tiers", 0, "replicas", "max_starve"), 0.1),
    (("tiers", 0, "replicas", "max"), -1),
    (("tiers", 1, "replicas"), {"min": 0}),
    (("limits", "max_prompt"), 5),
])
def test_a_bad_setting_in_the_serve_config_fails(
    rendered: list[dict[str, Any]], path: tuple[str | int, ...], value: object
) -> None:
    (application,) = serve_config(rendered)["applications"]
    node: Any = application["args"]
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    with pytest.raises(ConfigError):
        load_config(application["args"], environ={})


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
                is_file = str(variable.get("value", "")).startswith("/etc/")  # of a mounted secret
                if ("TOKEN" in variable["name"] or "KEY" in variable["name"]) and not is_file:
                    assert "secretKeyRef" in variable["valueFrom"]
    assert not [thing for thing in rendered if thing["kind"] == "Secret"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_needs_no_kinds_but_those_that_the_readme_names(overlay: str) -> None:
    known = {"", "apps", "policy", "networking.k8s.io", "ray.io"}
    groups = {thing["apiVersion"].rpartition("/")[0] for thing in render(overlay)}
    assert groups - known == OTHERS[overlay]
    (row,) = [line for line in (ROOT / "deploy" / "README.md").read_text().splitlines() if f"| `{overlay}` |" in line]
    assert ("Gateway API" in row, "Prometheus operator" in row) == (bool(OTHERS[overlay]),) * 2


def test_everything_is_in_one_namespace(rendered: list[dict[str, Any]]) -> None:
    spaces = {(thing["kind"], thing["metadata"].get("namespace")) for thing in rendered}
    assert {space for kind, space in spaces if kind != "Namespace"} == {"outrider"}


def gateway_objects() -> dict[str, dict[str, Any]]:
    return {thing["kind"]: thing for thing in render("mixed-gpus") if thing["apiVersion"].startswith("gateway.")}


def test_the_gateway_is_what_its_api_takes_and_leads_to_the_serve_service_over_tls() -> None:
    objects = gateway_objects()
    assert objects.keys() == GATEWAY_API.keys()
    for kind, thing in objects.items():
        jsonschema.validate(thing, GATEWAY_API[kind])
    route, policy = objects["GRPCRoute"]["spec"], objects["BackendTLSPolicy"]["spec"]
    (listener,) = objects["Gateway"]["spec"]["listeners"]
    assert route["parentRefs"] == [{"name": "outrider", "sectionName": listener["name"]}]
    assert route["hostnames"] == [listener["hostname"]]
    (target,) = policy["targetRefs"]
    head = ray_service(render("mixed-gpus"))["spec"]["rayClusterConfig"]["headGroupSpec"]
    ports = {port["name"]: port["containerPort"] for port in head["template"]["spec"]["containers"][0]["ports"]}
    assert route["rules"][0]["backendRefs"] == [{"name": target["name"], "port": ports[target["sectionName"]]}]


@pytest.mark.parametrize(("kind", "path", "value"), [
    ("BackendTLSPolicy", ("spec", "targetRef"), {}),
    ("BackendTLSPolicy", ("spec", "targetRefs", 0, "section"), "x"),
    ("BackendTLSPolicy", ("spec", "validation", "hostname"), "https://outrider.internal"),
    ("BackendTLSPolicy", ("spec", "validation", "caCertificateRefs"), []),
    ("BackendTLSPolicy", ("spec", "validation", "wellKnownCACertificates"), "System"),
    ("BackendTLSPolicy", ("apiVersion",), "gateway.networking.k8s.io/v1alpha3"),
    ("GRPCRoute", ("spec", "rules", 0, "matches", 0, "path"), "/x"),
    ("Gateway", ("spec", "listeners", 0, "protocol"), "GRPC"),
])  # fmt: skip
def test_a_bad_field_of_the_gateway_fails(kind: str, path: tuple[str | int, ...], value: object) -> None:
    broken = json.loads(json.dumps(gateway_objects()[kind]))
    node: Any = broken
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, GATEWAY_API[kind])


def test_probes_are_written_out_and_only_readiness_asks_for_a_way_to_replicas(rendered: list[dict[str, Any]]) -> None:
    head, *workers = pod_templates(ray_service(rendered))
    for spec in (head, *workers):
        (container,) = spec["containers"]
        alive, ready = (str(container[probe]["exec"]["command"]) for probe in ("livenessProbe", "readinessProbe"))
        assert "52365/api/healthz" in alive and "52365/api/healthz" in ready
        assert "8000" not in alive, "a model that loads must not be killed for it"
        assert (":8000/-/healthz" in ready) == (spec is not head)
        patience_s = container["livenessProbe"]["failureThreshold"] * container["livenessProbe"]["periodSeconds"]
        assert patience_s >= 600
    assert "wget" in (ROOT / "deploy" / "Dockerfile").read_text()


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


# --- security -------------------------------------------------------------------------------------

COMPONENTS = sorted(path.parent.name for path in KUSTOMIZE.glob("components/*/kustomization.yaml"))


def environments(service: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What each Ray container finds in its environment."""
    for spec in pod_templates(service):
        yield {variable["name"]: variable.get("value") for variable in spec["containers"][0]["env"]}


def test_every_node_starts_haproxy_through_ours_and_bounds_messages(rendered: list[dict[str, Any]]) -> None:
    limit = outrider_config(rendered).server.max_message_bytes
    image = (ROOT / "deploy" / "Dockerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for found in environments(ray_service(rendered)):
        assert found["RAY_SERVE_HAPROXY_BINARY_PATH"] == "/opt/outrider/bin/outrider-haproxy"
        assert found["RAY_SERVE_GRPC_MAX_MESSAGE_SIZE"] == str(limit)
    assert "RAY_SERVE_HAPROXY_BINARY_PATH=/opt/outrider/bin/outrider-haproxy" in image
    assert f"RAY_SERVE_GRPC_MAX_MESSAGE_SIZE={limit}" in image
    assert project["scripts"]["outrider-haproxy"] == "cluster.edge.haproxy:main"


def test_whoever_serves_gateways_has_tls_and_tokens_on_every_node(rendered: list[dict[str, Any]]) -> None:
    auth = outrider_config(rendered).auth
    encrypted = [haproxy.CERT in found for found in environments(ray_service(rendered))]
    assert all(encrypted) or not any(encrypted)
    if not all(encrypted):
        assert not [thing for thing in rendered if thing["kind"] in ("Gateway", "Service")], "plaintext for others"
        return
    assert auth is not None and auth.tokens_file is not None
    for spec in pod_templates(ray_service(rendered)):
        container = spec["containers"][0]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        secrets = {volume["name"]: volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume}
        found = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert secrets == {"tls": "outrider-tls", "tokens": "outrider-tokens"}
        assert {found[haproxy.CERT], found[haproxy.KEY]} == {mounts["tls"] + "/tls.crt", mounts["tls"] + "/tls.key"}
        assert auth.tokens_file == mounts["tokens"] + "/tokens"
        assert found[haproxy.HTTPS_PORT] == "8443"


def test_dashboard_and_plaintext_ports_are_open_to_the_operator_alone(rendered: list[dict[str, Any]]) -> None:
    (policy,) = [thing for thing in rendered if thing["kind"] == "NetworkPolicy"]
    closed = {8265, 52365, 6379, 10001, 8000, 8404, 9101}
    for rule in policy["spec"]["ingress"]:
        ports = {entry["port"] for entry in rule.get("ports", [])}
        operator = any("kuberay-operator" in str(peer) for peer in rule["from"])
        assert operator or not ports & closed
        assert ports or all(peer == {"podSelector": {"matchLabels": {"outrider/cluster": "outrider"}}}
                            for peer in rule["from"])


def with_components(names: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """The CPU overlay with these components."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: overlays cannot be rendered")
    shutil.copytree(KUSTOMIZE.parent, folder / "deploy")
    copied = folder / "deploy" / "kustomize"
    (copied / "all").mkdir()
    (copied / "all" / "kustomization.yaml").write_text(yaml.safe_dump({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": ["../overlays/cpu"],
        "components": [f"../components/{name}" for name in names],
    }))
    done = subprocess.run(["kubectl", "kustomize", str(copied / "all")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_the_certificate_that_a_pod_makes_itself_is_good_for_its_address_and_the_heads_service(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    for folder in ("ca", "tls", "tmp"):
        (tmp_path / folder).mkdir()
    authority = tmp_path / "ca" / "tls.crt"
    (init,) = next(pod_templates(ray_service(with_components(["ray-tls"], tmp_path))))["initContainers"]
    (script,) = init["args"]
    openssl = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=ray"]
    made = ["-keyout", str(tmp_path / "ca" / "tls.key"), "-out", str(authority)]
    subprocess.run([*openssl, *made], check=True, capture_output=True)
    script = re.sub(r"/etc/ray/|/tmp/", lambda found: f"{tmp_path}/{'tmp/' if found[0] == '/tmp/' else ''}", script)
    pod = {"POD_IP": "10.1.2.3", "POD_NAMESPACE": "outrider", "PATH": os.environ["PATH"]}
    subprocess.run(["sh", "-ec", script], check=True, capture_output=True, env=pod)
    check = ["openssl", "verify", "-CAfile", str(authority)]
    for which in (["-verify_ip", "10.1.2.3"], ["-verify_ip", "127.0.0.1"],
                  ["-verify_hostname", "outrider-x7k2p-head-svc.outrider.svc.cluster.local"]):
        subprocess.run([*check, *which, str(tmp_path / "tls" / "tls.crt")], check=True, capture_output=True)
    other = subprocess.run([*check, "-verify_ip", "10.1.2.4", str(tmp_path / "tls" / "tls.crt")], capture_output=True)
    assert other.returncode != 0


def test_every_component_renders_together_and_is_what_the_operator_takes(
    schema: dict[str, Any], tmp_path: Path
) -> None:
    order = ("tls", "mutual-tls", "tokens", "ray-tls", "gateway", "monitoring")
    assert {*COMPONENTS} == {*order}
    objects = with_components(order, tmp_path)
    service = ray_service(objects)
    jsonschema.validate(service, schema)
    for found in environments(service):
        assert found["RAY_USE_TLS"] == "1"
        assert found[haproxy.CLIENT_CA] == "/etc/outrider/tls/ca.crt"
    for spec in pod_templates(service):
        (init,) = spec["initContainers"]
        assert init["securityContext"]["runAsNonRoot"] and "ray-ca" in str(init["volumeMounts"])
    names = {volume["name"] for spec in pod_templates(service) for volume in spec["volumes"]}
    for mount in service["spec"]["rayClusterConfig"]["autoscalerOptions"]["volumeMounts"]:
        assert mount["name"] in names
