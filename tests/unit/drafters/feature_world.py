"""A target that tells features, small enough to know all its laws, and one-pass drafters for it.

The target's logits and features at a position depend on the last two tokens and on the position: a row that is not of
its place, or of another text, is another row, and greedy text does not go in circles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from actors.drafters.block import ContextMemory, block_drafter
from actors.drafters.copies import Copies
from actors.drafters.medusa import LastRow, medusa_drafter
from actors.drafters.one_pass import OnePassDrafter
from actors.heads.block import BlockConfig, BlockHead
from actors.heads.layers import Core
from actors.heads.medusa import MedusaConfig, MedusaHeads
from actors.heads.vocab import DraftVocabulary
from actors.messages import Context, Draft, DraftShape, Features, Ids, ReplicaInfo
from actors.sampling.params import SamplingParams
from actors.sampling.processors import process
from actors.sampling.rows import LogitRows
from actors.sampling.tree import VerifiedTree, path_to, verify_tree
from tests.models import tiny_spec

HIDDEN, LAYERS = 16, 4
MAX_CONTEXT_TOKENS = 512
OnePass = OnePassDrafter[LastRow] | OnePassDrafter[ContextMemory]


class Target:
    """Says by two tokens what comes next; `num_layers` of its layers are read."""

    def __init__(self, vocab_size: int, num_layers: int, seed: int = 0, scale: float = 1.5) -> None:
        rng = np.random.default_rng(seed)
        self.vocab_size = vocab_size
        self.width = num_layers * HIDDEN
        self._logits = scale * rng.standard_normal((vocab_size, vocab_size, vocab_size))
        self._shifts = rng.standard_normal((MAX_CONTEXT_TOKENS, vocab_size))
        self._features = rng.standard_normal((vocab_size, vocab_size, self.width))
        self._positions = 0.3 * rng.standard_normal((MAX_CONTEXT_TOKENS, self.width))

    def features(self, ids: Ids, start: int, end: int) -> Features:
        """Of positions [start, end) of a text."""
        before = np.concatenate([[0], ids])
        rows = self._features[before[start:end], before[start + 1 : end + 1]] + self._positions[start:end]
        return Features(start, np.asarray(rows, np.float16).reshape(end - start, self.width))

    def logits(self, ids: Sequence[int] | Ids) -> torch.Tensor:
        """After a text, [vocab_size]."""
        return torch.from_numpy((self._logits[ids[-2], ids[-1]] + self._shifts[len(ids)]).astype(np.float32))

    def rows(self, ids: Ids, draft: Draft) -> LogitRows:
        """Logits after `ids`, and after each node of a draft."""
        parents = np.arange(-1, len(draft.tokens) - 1) if draft.parents is None else draft.parents
        texts = [ids, *(
            np.concatenate([ids, draft.tokens[path_to(parents, node)]]) for node in range(len(draft.tokens))
        )]
        return LogitRows(torch.stack([self.logits(text) for text in texts]))

    def verify(self, ids: Ids, draft: Draft, num_prompt: int, sampling: SamplingParams, round: int) -> VerifiedTree:
        """The verdict of tier 1."""
        return verify_tree(
            draft.tokens, draft.parents, draft.laws, self.rows(ids, draft), sampling, ids, num_prompt, 1, round,
            False, 0,
        )

    def law(self, ids: Sequence[int], sampling: SamplingParams, num_prompt: int) -> np.ndarray:
        """Of the token after `ids`, [vocab_size]."""
        law = np.exp(process(self.logits(ids), sampling, list(ids), num_prompt).numpy().astype(np.float64))
        return law / law.sum()


def info(vocab_size: int) -> ReplicaInfo:
    return ReplicaInfo(0, "tiny", vocab_size, MAX_CONTEXT_TOKENS, 0, 16, "")


def medusa_heads(vocab_size: int, ids: Sequence[int] | None = None, num_heads: int = 5, scale: float = 0.5
                 ) -> MedusaHeads:
    """Heads with random weights that draft `ids` (None: all)."""
    torch.manual_seed(3)
    vocabulary = DraftVocabulary(np.arange(vocab_size) if ids is None else np.array(ids), vocab_size)
    config = MedusaConfig(HIDDEN, vocab_size, LAYERS, (LAYERS,), len(vocabulary.ids), num_heads=num_heads)
    heads = MedusaHeads.fresh(config, torch.ones(HIDDEN), 0.4 * torch.randn(vocab_size, HIDDEN), vocabulary)
    for parameter in heads.heads.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    return heads


def block_head(vocab_size: int, ids: Sequence[int] | None = None, block_size: int = 6, window: int = 0) -> BlockHead:
    """A head with random weights over two layers that drafts `ids` (None: all)."""
    torch.manual_seed(4)
    vocabulary = DraftVocabulary(np.arange(vocab_size) if ids is None else np.array(ids), vocab_size)
    core = Core(num_layers=2, intermediate=24, num_heads=4, num_kv_heads=2, head_dim=8, max_positions=1024)
    config = BlockConfig(
        HIDDEN, vocab_size, LAYERS, (2, 4), len(vocabulary.ids), core=core, block_size=block_size, window=window
    )
    embedding, output = torch.randn(vocab_size, HIDDEN), 0.5 * torch.randn(vocab_size, HIDDEN)
    return BlockHead.fresh(config, embedding, output, vocabulary, scale=0.4)


def make_medusa(vocab_size: int, ids: Sequence[int] | None = None, law_support: int = 0,
                copies: Copies | None = None, **changes: object) -> OnePassDrafter[LastRow]:
    spec = tiny_spec(tier=0, kernels="portable", **changes)
    return medusa_drafter(medusa_heads(vocab_size, ids), spec, info(vocab_size), law_support, copies)


def make_block(vocab_size: int, ids: Sequence[int] | None = None, law_support: int = 0, window: int = 0,
               copies: Copies | None = None, **changes: object) -> OnePassDrafter[ContextMemory]:
    spec = tiny_spec(tier=0, kernels="portable", **changes)
    return block_drafter(block_head(vocab_size, ids, window=window), spec, info(vocab_size), law_support, copies)


MAKERS: dict[str, tuple[int, Callable[..., OnePass]]] = {"medusa": (1, make_medusa), "block": (2, make_block)}
"""Of each kind, how many layers it reads, and what makes a drafter for a vocabulary."""


@dataclass
class Text:
    """A sequence under way, told as a coordinator would tell it."""

    name: str
    prompt: Ids
    sampling: SamplingParams
    ids: Ids = field(init=False)
    told: int = 0  # tokens that the drafter has heard of
    features: Features | None = None  # of the last verdict
    round: int = 0
    drafted: int = 0
    accepted: int = 0

    def __post_init__(self) -> None:
        self.ids = self.prompt

    def context(self) -> Context:
        """The next call."""
        self.round += 1
        return Context(
            self.name, self.told, self.ids[self.told :], len(self.prompt), len(self.ids), self.sampling, self.round,
            self.features,
        )

    def advance(self, draft: Draft, target: Target) -> None:
        """Verify, commit, and keep the features that the drafter lacks."""
        assert draft.error is None
        verdict = target.verify(self.ids, draft, len(self.prompt), self.sampling, self.round)
        self.told = len(self.ids)
        start = draft.features_missing if draft.features_missing >= 0 else len(self.ids) - 1
        self.ids = np.concatenate([self.ids, verdict.tokens]).astype(np.int32)
        self.features = target.features(self.ids, start, len(self.ids) - 1)
        self.drafted += len(draft.tokens)
        self.accepted += verdict.num_accepted


def run(drafter: OnePass, target: Target, texts: Sequence[Text], shape: DraftShape, num_tokens: int) -> None:
    """Rounds of all texts, drafted for together, until each has `num_tokens` new tokens."""
    while going := [text for text in texts if len(text.ids) - len(text.prompt) < num_tokens]:
        drafts = [drafter.propose(text.context(), shape) for text in going]
        for text, draft in zip(going, drafts, strict=True):
            text.advance(draft.result(30), target)

