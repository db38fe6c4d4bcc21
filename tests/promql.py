"""The PromQL of the dashboard and of the alerts, read as far as names go."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[1] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "outrider.json"
RULES = DEPLOY / "prometheus" / "rules.yaml"
FUNCTIONS = {
    "absent", "and", "by", "clamp_min", "histogram_quantile", "increase", "label_values", "max", "or", "rate", "sum",
    "unless",
}
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\[[^\]]*\]|\d[\w.]*|\$?\w+|[{}(),]|=~|!~|!=|>=|<=|==|[-+*/<>=]|\s+')


@dataclass(frozen=True)
class Use:
    """A metric, and the labels that an expression reads of it."""

    metric: str
    labels: frozenset[str]

    @classmethod
    def all_of(cls, expression: str) -> list[Use]:
        """Raises ValueError for what is not understood: an unknown name, or brackets that do not match."""
        tokens = [token for token in _tokens(expression) if not token.isspace()]
        metrics: dict[str, set[str]] = {}
        grouped: set[str] = set()
        opened, latest, inside, grouping = 0, "", False, False
        for i, token in enumerate(tokens):
            if token in "({":
                opened, inside = opened + 1, inside or token == "{"
                grouping = grouping or (token == "(" and i > 0 and tokens[i - 1] == "by")
            elif token in ")}":
                opened, inside, grouping = opened - 1, inside and token != "}", grouping and token != ")"
                if opened < 0:
                    raise ValueError(f"{expression}: a bracket too many")
            elif inside and re.match(r"[a-z_]\w*$", token):
                metrics[latest].add(token)
            elif grouping and re.match(r"[a-z_]\w*$", token):
                grouped.add(token)
            elif token.startswith("outrider_"):
                latest = token
                metrics.setdefault(token, set())
            elif re.match(r"[a-z_]\w*$", token) and token not in FUNCTIONS and tokens[0] != "label_values":
                raise ValueError(f"{expression}: {token} is no metric of ours and no function that is known")
        if opened:
            raise ValueError(f"{expression}: a bracket is not closed")
        if tokens[0] == "label_values":
            grouped.add(tokens[-2])
        return [cls(metric, frozenset(labels | grouped)) for metric, labels in metrics.items()]


def _tokens(expression: str) -> Iterator[str]:
    end = 0
    while end < len(expression):
        found = _TOKEN.match(expression, end)
        if found is None:
            raise ValueError(f"{expression}: {expression[end:]!r} is not understood")
        yield found.group()
        end = found.end()


def dashboard() -> dict[str, Any]:
    """The Grafana dashboard."""
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def alerts() -> list[dict[str, Any]]:
    """The alert rules."""
    groups = yaml.safe_load(RULES.read_text())["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def rules_and_panels() -> list[tuple[str, str]]:
    """(where, expression) of everything that asks Prometheus something."""
    found = [(rule["alert"], rule["expr"]) for rule in alerts()]
    board = dashboard()
    found += [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", [])]
    found += [
        (variable["name"], variable["query"]["query"]) for variable in board["templating"]["list"]
        if variable["type"] == "query"
    ]
    return found
