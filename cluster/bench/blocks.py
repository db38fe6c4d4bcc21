"""Block against token-wise verification on a real pair: one set of drafts and logits, two rules.

No engine and no clock: drafts and target rows are computed once a round on bare runners, the mean that each rule
accepts of that draft is computed without dice, and the text goes on with what block verification committed. Averaged
over drafts the block's mean is never the smaller (Sun et al. 2403.10444); for a single draft it can be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from rich import box
from rich.table import Table

from actors.engine.step import ModelRunner
from actors.messages import Ids, Laws
from actors.sampling import laws as law_tools
from actors.sampling.draw import draw
from actors.sampling.expected import expected_accepted
from actors.sampling.laws import SparseLaw
from actors.sampling.noise import Purpose, stream
from actors.sampling.params import SamplingParams
from actors.sampling.rows import LogitRows
from actors.sampling.verify import verify
from cluster.bench.engine.feed import TextFeed


@dataclass(frozen=True, slots=True)
class BlockSettings:
    """What is compared. The sizes are in tokens."""

    lookahead: int = 5
    rounds_per_prompt: int = 24
    temperature: float = 1.0
    law_support: int = 64  # as in `DrafterSpec`
    page_tokens: int = 64
    kv_tokens: int = 1024  # room of each runner
    entropy: int = 0
    eos_ids: tuple[int, ...] = ()  # a text that ends goes on with the next prompt

    def __post_init__(self) -> None:
        if self.temperature <= 0.0:
            raise ValueError(f"temperature {self.temperature:g} draws nothing: both rules agree there, take 1")
        if self.lookahead < 1:
            raise ValueError(f"lookahead {self.lookahead} drafts nothing: take at least 1")


@dataclass(frozen=True, slots=True)
class BlockComparison:
    """Mean accepted draft tokens per round under both rules. Errors are standard errors of paired rounds."""

    num_rounds: int
    lookahead: int
    token_wise: float
    block: float
    difference: float  # block - token_wise
    difference_error: float
    ratio: float  # block / token_wise
    ratio_error: float

    def as_json(self) -> dict[str, float | int]:
        """Plain JSON types."""
        return {name: round(value, 5) for name, value in asdict(self).items()}


def compare(
    target: ModelRunner, draft: ModelRunner, prompts: Sequence[Ids], settings: BlockSettings,
    on_round: Callable[[], None] = lambda: None,
) -> BlockComparison:
    """Run `rounds_per_prompt` rounds after each prompt. The runners, two different ones, must belong to nobody else."""
    if target is draft:
        raise ValueError("target and draft share one runner and so one KV cache: build a second one")
    longest = max(len(each) for each in prompts) + settings.rounds_per_prompt * (settings.lookahead + 1)
    if longest > settings.kv_tokens:
        raise ValueError(f"texts of {longest} tokens do not fit into {settings.kv_tokens}: run fewer rounds")
    token_wise: list[float] = []
    block: list[float] = []
    for number, prompt in enumerate(prompts):
        pair = _Pair(target, draft, prompt, settings, number)
        for round_ in range(settings.rounds_per_prompt):
            accepted = pair.round(round_)
            token_wise.append(accepted[0])
            block.append(accepted[1])
            on_round()
            if pair.ended:
                break
    return summarise(token_wise, block, settings.lookahead)


def summarise(token_wise: Sequence[float], block: Sequence[float], lookahead: int) -> BlockComparison:
    """Means and paired errors of accepted tokens, round by round. Raises ValueError for fewer than two rounds."""
    if len(token_wise) < 2 or len(token_wise) != len(block):
        raise ValueError(f"{len(token_wise)} and {len(block)} rounds: a paired error needs two rounds or more")
    a, b = np.asarray(token_wise, np.float64), np.asarray(block, np.float64)
    if not a.any():
        raise ValueError("not one draft token was accepted: nothing is compared, take a draft nearer to the target")
    ratio = float(b.mean() / a.mean())
    root = math.sqrt(len(a))
    return BlockComparison(
        num_rounds=len(a), lookahead=lookahead, token_wise=float(a.mean()), block=float(b.mean()),
        difference=float((b - a).mean()), difference_error=float((b - a).std(ddof=1)) / root,
        ratio=ratio, ratio_error=float((b - ratio * a).std(ddof=1)) / root / float(a.mean()),
    )


def render(found: BlockComparison) -> Table:
    """The comparison as a table."""
    title = f"accepted per round of {found.lookahead} draft tokens, {found.num_rounds} rounds, the same drafts for both"
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("rule", no_wrap=True)
    table.add_column("mean accepted", justify="right")
    table.add_column("standard error", justify="right")
    table.add_row("token-wise", f"{found.token_wise:.3f}", "")
    table.add_row("block", f"{found.block:.3f}", "")
    table.add_row("block - token-wise", f"{found.difference:+.3f}", f"{found.difference_error:.3f}")
    table.add_row("block / token-wise", f"{found.ratio:.3f}", f"{found.ratio_error:.3f}")
    return table


class _Pair:
    """One text, and how much of it each runner holds."""

    def __init__(
        self, target: ModelRunner, draft: ModelRunner, prompt: Ids, settings: BlockSettings, number: int
    ) -> None:
        self._target = target
        self._draft = draft
        self._settings = settings
        self._prompt_tokens = len(prompt)
        self._text = np.asarray(prompt, np.int32)
        self._held = {id(target): 0, id(draft): 0}  # tokens whose keys are right
        self._entropy = (settings.entropy << 32) + (number << 16)
        self.ended = False

    def round(self, round_: int) -> tuple[float, float]:
        """Expected accepted tokens of one draft, token-wise and by blocks."""
        size, lookahead = len(self._text), self._settings.lookahead
        ids, laws = self._propose(round_)
        logits = self._rows(self._target, np.concatenate([self._text, ids]), lookahead + 1)
        rules = (self._params(block_verification=False), self._params(block_verification=True))
        token_wise, block = (
            expected_accepted(ids, laws, logits, rule, self._text, self._prompt_tokens) for rule in rules
        )
        committed = verify(ids, laws, logits, rules[1], self._text, self._prompt_tokens, 1, round_, False, 0)
        self._text = np.concatenate([self._text, committed.tokens])
        self._held[id(self._target)] = size + committed.num_accepted
        self._held[id(self._draft)] = size + min(committed.num_accepted, lookahead - 1)
        self.ended = bool(np.isin(committed.tokens, self._settings.eos_ids).any())
        return token_wise, block

    def _propose(self, round_: int) -> tuple[Ids, Laws]:
        params = self._params()
        noise = stream(self._entropy, Purpose.DRAFT, 0, round_)
        text, laws = self._text, list[SparseLaw]()
        for _ in range(self._settings.lookahead):
            row = self._rows(self._draft, text, 1)
            drawn = draw(row, 0, params, text, self._prompt_tokens, noise, self._settings.law_support)
            assert drawn.law is not None
            laws.append(drawn.law)
            text = np.append(text, np.int32(drawn.token))
        return text[len(self._text) :], law_tools.build(laws)

    def _rows(self, runner: ModelRunner, text: Ids, num_logits: int) -> LogitRows:
        """Logits of the last rows of `text`, after the pass that brings the runner's keys up to it."""
        held = self._held[id(runner)]
        feed = TextFeed(runner, text, self._settings.page_tokens)
        self._held[id(runner)] = len(text)
        return LogitRows(feed.run(held, len(text), num_logits))

    def _params(self, *, block_verification: bool = True) -> SamplingParams:
        return SamplingParams(
            temperature=self._settings.temperature, block_verification=block_verification, entropy=self._entropy
        )
