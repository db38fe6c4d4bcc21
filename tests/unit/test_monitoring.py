"""Dashboard and alerts load, ask only for metrics that there are, and reach the clusters that want them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from cluster.telemetry import metrics as m
from cluster.telemetry.metrics import Kind, Metric
from tests.promql import DASHBOARD, RULES, Use, alerts, dashboard, rules_and_panels

SOURCE = {"model_name", "replica"}  # labels that every series has; those of pools a tier too
SERIES = {
    metric.name + suffix: SOURCE | {"tier"} | {*metric.labels} | ({"le"} if suffix == "_bucket" else set())
    for metric in vars(m).values() if isinstance(metric, Metric)
    for suffix in (("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",))
}
WHAT_AN_ALERT_MUST_SEE = {
    "OutriderAcceptanceLow": "< 0.7", "OutriderDegraded": "degraded", "OutriderKvPressure": "kv_cache_usage",
    "OutriderSlowFirstToken": "time_to_first_token", "OutriderQueueFills": "requests_waiting",
}


@pytest.mark.parametrize(("where", "expression"), rules_and_panels())
def test_an_expression_reads_only_what_is_counted(where: str, expression: str) -> None:
    uses = Use.all_of(expression)
    assert uses
    for use in uses:
        assert use.metric in SERIES, f"{where}: there is no {use.metric}"
        assert use.labels <= SERIES[use.metric], f"{where}: {use.metric} has no {use.labels - SERIES[use.metric]}"


@pytest.mark.parametrize("wrong", [
    "sum(rate(outrider_requests_total[5m])", "summ(outrider_requests_total)", "outrider_requests_total ~ 3",
    "rate(requests_total[5m])",
])
def test_an_expression_that_is_wrong_is_noticed(wrong: str) -> None:
    with pytest.raises(ValueError, match="bracket|no metric|not understood"):
        Use.all_of(wrong)


def test_alerts_say_what_to_do() -> None:
    rules = {rule["alert"]: rule for rule in alerts()}
    for name, part in WHAT_AN_ALERT_MUST_SEE.items():
        assert part in rules[name]["expr"]
    for rule in rules.values():
        assert {*rule} == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {*rule["annotations"]} == {"summary", "description"}


def test_panels_have_places_of_their_own_and_say_their_units() -> None:
    board = dashboard()
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_itself_takes_the_rules(tmp_path: Path) -> None:
    plain = tmp_path / "rules.yaml"
    plain.write_text(yaml.safe_dump(yaml.safe_load(RULES.read_text())["spec"]))
    subprocess.run(["promtool", "check", "rules", str(plain)], check=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize(("overlay", "is_watched"), [("cpu", False), ("one-node", False), ("mixed-gpus", True)])
def test_overlays_bring_dashboard_rules_and_scraping(overlay: str, is_watched: bool) -> None:
    folder = DASHBOARD.parents[1] / "kustomize" / "overlays" / overlay
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True)
    objects = {(thing["kind"], thing["metadata"]["name"]): thing for thing in yaml.safe_load_all(done.stdout)}
    wanted = {("ConfigMap", "outrider-dashboard"), ("PodMonitor", "outrider"), ("PrometheusRule", "outrider")}
    assert (wanted <= {*objects}) == is_watched
    if not is_watched:
        return
    board = objects["ConfigMap", "outrider-dashboard"]
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert board["data"]["outrider.json"] == DASHBOARD.read_text()
    monitor = objects["PodMonitor", "outrider"]["spec"]
    cluster = objects["RayService", "outrider"]["spec"]["rayClusterConfig"]
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        assert monitor["selector"]["matchLabels"].items() <= group["template"]["metadata"]["labels"].items()
    (policy,) = [thing for (kind, _), thing in objects.items() if kind == "NetworkPolicy"]
    assert {"port": 8080, "protocol": "TCP"} in [port for rule in policy["spec"]["ingress"]
                                                 for port in rule.get("ports", [])]
    assert {thing["metadata"]["namespace"] for key, thing in objects.items() if key in wanted} == {"outrider"}
