"""Costs of a pair out of what a bench measured: `bench drafters`, `bench engine` or `bench ladder`, by their JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cluster.planning.costs import Costs, NoCosts, of_drafters, pair

SOURCES = "`outrider bench drafters --json`, `bench engine --json` or `bench ladder --json`"
_LOOKAHEAD = re.compile(r"(sync|chain), k = (\d+)")
_LEAST_S = 1e-6


def of_measured(found: object, kind: str | None = None) -> Costs:
    """Costs of whatever bench this is from; `kind`: of the drafters that were measured, this one. Raises `NoCosts`."""
    if not isinstance(found, Mapping):
        raise NoCosts(f"the JSON is no bench's: give the output of {SOURCES}")
    rows = found.get("rows")
    rows = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    try:
        if any("category" in row for row in rows):
            return of_drafters(found, kind)
        is_ladder = any("section" in row and "speedup" in row for row in rows)
        if not is_ladder and not ("settings" in found and "kinds" in found):
            raise NoCosts(f"no figures of a draft and a target are in it: give the output of {SOURCES}")
        if kind is not None:
            raise NoCosts("--kind chooses among the drafters of `bench drafters`; what is given measured one: drop it")
        return _of_ladder(rows) if is_ladder else _of_engine(found)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        if isinstance(error, NoCosts):
            raise
        raise NoCosts(f"the bench's figures are not whole ({type(error).__name__}: {error}): measure again, and give "
                      "the output as it is") from error


def _of_engine(found: Mapping[str, Any]) -> Costs:
    """Draft and target of the part `speculation`, without a network; what rows cost is known from the part `steps`."""
    runs: Mapping[str, Any] = found.get("speculation", {}).get("runs", {})
    if not {"ours", "ours_alone"} <= runs.keys():
        raise NoCosts("`bench engine` did not measure the part that tells acceptance: run it with "
                      "--only steps,speculation")
    lookahead = int(found["settings"]["lookahead"])
    plain_s = 1.0 / runs["ours_alone"]["tokens_per_s"]["median"]
    round_s = runs["ours"]["mat"] / runs["ours"]["tokens_per_s"]["median"]
    rows_cost = _rows_cost(found.get("steps", ()), found["settings"]["target_kind"], lookahead + 1)
    verify_s = max(plain_s, min(round_s, plain_s * rows_cost))
    draft_s = max(_LEAST_S, (round_s - verify_s) / lookahead)
    agreement = _agreement(runs["ours"]["acceptance"], lookahead)
    return pair(plain_s, draft_s, (agreement,), row_s=(verify_s - plain_s) / lookahead)


def _rows_cost(steps: Any, kind: str, num_rows: int) -> float:
    """A target's pass over so many rows, in passes over one; 1 where no steps were measured."""
    of_kind = [step for step in steps if step["kind"] == kind and step["context"]]
    if not of_kind:
        return 1.0
    context = min(step["context"] for step in of_kind)
    times = {int(step["rows"]): float(step["ms"]) for step in of_kind if step["context"] == context}
    above = [rows for rows in times if rows >= num_rows]
    near = min(above) if above else max(times)
    per_row = (times[near] / times[1] - 1.0) / (near - 1) if near > 1 else 0.0
    return 1.0 + max(0.0, per_row) * (num_rows - 1)


def _agreement(kept: float, lookahead: int) -> float:
    """The chance of each token, of which so large a share of all drafted tokens is kept."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        share = sum(middle**i for i in range(1, lookahead + 1)) / lookahead
        low, high = (middle, high) if share < kept else (low, middle)
    return high


def _of_ladder(rows: list[Mapping[str, Any]]) -> Costs:
    """The real pair on CPUs where it was measured, else the EMULATED one: of its chains in turn, the fastest.

    A round is k draft passes, a target's pass and four ways through the network; how long the two computed is known.
    """
    chains = [
        (row, int(match[2])) for row in rows
        if row.get("section") in ("cpu", "sync") and (match := _LOOKAHEAD.fullmatch(row["name"]))
        and row.get("busy", {}).keys() >= {"draft", "target"} and row.get("agreement")
    ]
    if not chains:
        raise NoCosts("`bench ladder` measured no chain of a draft and a target: run it with --only sync or --only cpu")
    real = [chain for chain in chains if chain[0]["section"] == "cpu"]
    row, lookahead = max(real or chains, key=lambda chain: float(chain[0]["tokens_per_s"]))
    round_s = row["mat"] / row["tokens_per_s"]
    draft_s, verify_s = (row["busy"][name] * round_s for name in ("draft", "target"))
    hop_s = max(0.0, (round_s - draft_s - verify_s) / 4)
    plain_s = min(verify_s, max(_LEAST_S, row["speedup"] / row["tokens_per_s"] - 2 * hop_s))
    name = "draft (EMULATED)" if row["emulated"] else "draft"
    return pair(plain_s, draft_s / lookahead, (row["agreement"],), hop_s=hop_s, name=name,
                row_s=(verify_s - plain_s) / lookahead)
