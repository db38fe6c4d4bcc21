"""The target alone against speculation: the same greedy requests both ways, and a table of the outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.table import Table

from cluster.cli import client
from cluster.cli.client import Completion, Options
from cluster.rpc import outrider_pb2_grpc

PROMPTS = (
    ("list", "List the planets of the solar system and one fact about each."),
    ("code", "Write a Python function that returns the n-th Fibonacci number, and explain it."),
    ("story", "Tell a short story about a horse that scouts ahead of the herd."),
    ("repeat", "Repeat this sentence three times: The quick brown fox jumps over the lazy dog."),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt, answered by the target alone and with speculation."""

    name: str
    alone: Completion
    speculative: Completion

    @property
    def identical(self) -> bool:
        """Whether token ids and text agree."""
        return (self.alone.token_ids, self.alone.text) == (self.speculative.token_ids, self.speculative.text)

    @property
    def speedup(self) -> float:
        """How many times faster speculation was, whole requests compared."""
        return self.speculative.tokens_per_s / self.alone.tokens_per_s if self.alone.tokens_per_s else 0.0

    def as_json(self) -> dict[str, object]:
        """The figures of this prompt."""
        return {"prompt": self.name, **_figures([self])}


def compare(
    stub: outrider_pb2_grpc.OutriderStub,
    options: Options,
    timeout_s: float,
    on_done: Callable[[], None] = lambda: None,
    prompts: Sequence[tuple[str, str]] = PROMPTS,
) -> list[Comparison]:
    """Ask every prompt both ways, after a one-token request that fills both prefix caches alike."""
    rows: list[Comparison] = []
    for name, prompt in prompts:
        client.stream(stub, client.request(prompt, replace(options, max_tokens=1)), timeout_s)
        alone = client.stream(stub, client.request(prompt, replace(options, speculation=False)), timeout_s)
        on_done()
        speculative = client.stream(stub, client.request(prompt, options), timeout_s)
        on_done()
        rows.append(Comparison(name, alone, speculative))
    return rows


def summary(rows: Sequence[Comparison]) -> dict[str, object]:
    """The figures of all prompts together. `conclusive` is false when no draft token was ever checked."""
    totals = _figures(rows)
    return {**totals, "conclusive": totals["num_drafted"] != 0, "prompts": [row.as_json() for row in rows]}


def _figures(rows: Sequence[Comparison]) -> dict[str, object]:
    """Rates over the sum of tokens and the sum of seconds."""
    parts = [row.speculative.finish.speculation for row in rows]
    num_rounds = sum(part.num_rounds for part in parts)
    num_drafted = sum(part.num_drafted for part in parts)
    num_accepted = sum(part.num_accepted for part in parts)
    num_tokens = sum(len(row.speculative.token_ids) for row in rows)
    alone = _rate([row.alone for row in rows])
    speculative = _rate([row.speculative for row in rows])
    return {
        "num_tokens": num_tokens,
        "alone_tokens_per_s": round(alone, 2),
        "speculative_tokens_per_s": round(speculative, 2),
        "speedup": round(speculative / alone, 3) if alone else 0.0,
        "num_rounds": num_rounds,
        "mat": round(num_tokens / num_rounds, 3) if num_rounds else 0.0,
        "num_drafted": num_drafted,
        "num_accepted": num_accepted,
        "acceptance": round(num_accepted / num_drafted, 4) if num_drafted else None,
        "identical": all(row.identical for row in rows),
    }


def _rate(answers: Sequence[Completion]) -> float:
    """Tokens per second over several requests."""
    total_s = sum(answer.total_s for answer in answers)
    return sum(len(answer.token_ids) for answer in answers) / total_s if total_s else 0.0


def table(rows: Sequence[Comparison]) -> Table:
    """One row per prompt and one for all."""
    view = Table(title="target alone against speculation (greedy)", box=box.SIMPLE_HEAD)  # fits 80 columns
    view.add_column("prompt")
    for header in ("tokens", "alone\ntokens/s", "speculation\ntokens/s", "speed-up", "MAT", "acceptance"):
        view.add_column(header, justify="right")
    view.add_column("identical\ntext")
    for row in rows:
        view.add_row(*_cells(row.name, _figures([row])))
    view.add_section()
    view.add_row(*_cells("all", _figures(rows)), style="bold")
    return view


def _cells(name: str, figures: dict[str, object]) -> list[str]:
    acceptance = figures["acceptance"]
    return [
        name,
        str(figures["num_tokens"]),
        f"{figures['alone_tokens_per_s']:.1f}",
        f"{figures['speculative_tokens_per_s']:.1f}",
        f"{figures['speedup']:.2f}x",
        f"{figures['mat']:.2f}",
        "-" if acceptance is None else f"{acceptance:.0%}",
        "[green]yes[/]" if figures["identical"] else "[red]NO[/]",
    ]
