"""How often shallow passes of a model say what the whole model says, on text that it wrote itself."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from actors.engine.jobs import Job
from actors.engine.shallow import Shallow
from actors.messages import Context, DraftShape, Ids
from actors.sampling.params import SamplingParams
from actors.sampling.rows import LogitRows
from actors.verifier import Verifier

SPAN = 8  # tokens drafted on whole KV, as in use
_ANSWER = 64  # tokens of each answer
_PROMPTS = (
    "Explain how a bicycle stays upright.",
    "Write a short Python function that returns the largest number of a list.",
    "A train leaves at 9:40 and arrives at 13:05. How long is the journey?",
    "Summarise the story of the tortoise and the hare.",
)
_GREEDY = SamplingParams()
_PATIENCE_S = 600.0  # for any one pass


class CalibrationFailed(RuntimeError):
    """The engine cannot hold the text; one line that names the fix."""


class _Comparison(Job):
    """Runs a span shallowly after its whole context, and counts the tokens that come out as they are."""

    future: Future[int]

    def __init__(self, context: Context, span: Ids, shallow: Shallow) -> None:
        super().__init__(context, Future())
        self._span = span
        self.shallow = shallow
        self.num_whole = context.num_tokens - 1

    def draft_ids(self) -> Ids:
        """The span without its last token, whose successor is not asked for."""
        return self._span[:-1]

    def on_logits(self, logits: LogitRows, history_ids: Ids) -> int | None:
        """Compare."""
        said = [logits.best(row) for row in range(len(logits))]
        self.future.set_result(int((np.array(said, np.int32) == self._span).sum()))
        return None

    def fail(self, error: Exception) -> None:
        """To the caller."""
        if not self.future.done():
            self.future.set_exception(error)


class Calibration:
    """Spans of the model's own answers, each on a sequence whose KV is whole. `close` frees them."""

    def __init__(self, host: Verifier, tokenizer: Any, prompts: Sequence[str] = _PROMPTS) -> None:
        """Raises `CalibrationFailed`."""
        self._host = host
        self._spans: list[tuple[Context, Ids]] = []
        spec, info = host.engine.spec, host.info()
        most_spans = max(1, spec.max_sequences // 2)
        left = info.num_pages * info.page_tokens // 2
        for prompt in _encoded(tokenizer, prompts):
            length = min(_ANSWER, info.max_context_tokens - len(prompt))
            if length < SPAN:
                continue
            text = np.concatenate([prompt, self._answer(prompt, length)])
            for start in range(len(prompt), len(text) - SPAN + 1, SPAN):
                left -= start + SPAN + info.page_tokens
                if left >= 0 and len(self._spans) < most_spans:
                    context = _context(f"calibration {len(self._spans)}", text[:start])
                    self._spans.append((context, text[start : start + SPAN]))
        if not self._spans:
            raise CalibrationFailed("the target's KV memory is too small to try out layers: raise its kv_tokens")
        for pass_ in [host.verify(context, []) for context, _ in self._spans]:
            if (error := pass_.result(_PATIENCE_S).error) is not None:
                raise CalibrationFailed(f"the target cannot be tried out: {error}")

    def agreement(self, shallow: Shallow) -> float:
        """Share of tokens on which such passes agree with the whole model."""
        jobs = [_Comparison(context, span, shallow) for context, span in self._spans]
        for job in jobs:
            self._host.engine.submit(job)
        return sum(job.future.result(_PATIENCE_S) for job in jobs) / (SPAN * len(jobs))

    def close(self) -> None:
        """Free the sequences."""
        for context, _ in self._spans:
            self._host.close(context.sequence_id)

    def _answer(self, prompt: Ids, length: int) -> Ids:
        """What the model says by itself, ends of text included: it goes on."""
        context = _context("calibration", prompt)
        draft = self._host.propose(context, DraftShape(length)).result(_PATIENCE_S)
        self._host.close(context.sequence_id)
        if draft.error is not None:
            raise CalibrationFailed(f"the target cannot be tried out: {draft.error}")
        return draft.tokens


def _context(sequence_id: str, tokens: Ids) -> Context:
    return Context(sequence_id, 0, tokens, len(tokens), 0, _GREEDY, 0)


def _encoded(tokenizer: Any, prompts: Sequence[str]) -> list[Ids]:
    found = []
    for prompt in prompts:
        if getattr(tokenizer, "chat_template", None):
            turns = [{"role": "user", "content": prompt}]
            ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]
        else:
            ids = tokenizer(prompt)["input_ids"]
        found.append(np.array(ids, np.int32))
    return found
