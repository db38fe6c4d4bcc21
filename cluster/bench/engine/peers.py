"""Plain transformers on the same model in the same process: `generate`, and `generate(assistant_model=...)`."""

from __future__ import annotations

import copy
import time
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from actors.messages import Ids
from cluster.bench.engine.ladder import Generated
from cluster.bench.engine.machine import synchronize


class _Clock(BaseStreamer):
    """Notes when tokens come; `generate` first puts the prompt itself."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._prompt_seen = False
        self.times: list[float] = []
        self.counts: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        """Called by `generate` with the prompt, then with each block of new tokens."""
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        synchronize(self._device)
        self.times.append(time.perf_counter())
        self.counts.append(value.numel())

    def end(self) -> None:
        """Nothing is held back."""


class PlainTransformers:
    """Greedy generation by an unchanged transformers model with its own cache, batch 1."""

    def __init__(self, model: Any, assistant: Any | None = None, num_assistant_tokens: int = 0) -> None:
        self._model = model
        self._assistant = assistant
        self._device = str(model.device)
        self._settings = _endless(model)
        if assistant is not None:
            assistant.generation_config = _endless(assistant)
            # Constant k, as in our ladder: no schedule, and no early end at an unsure token.
            for settings in (self._settings, assistant.generation_config):
                settings.num_assistant_tokens = num_assistant_tokens
                settings.num_assistant_tokens_schedule = "constant"
                settings.assistant_confidence_threshold = 0.0

    def generate(self, prompt: Ids, num_tokens: int) -> Generated:
        """`num_tokens` tokens after `prompt`; rounds are passes of the model (not of its assistant)."""
        passes = 0

        def count(*_: object) -> None:
            nonlocal passes
            passes += 1

        clock = _Clock(self._device)
        settings = copy.deepcopy(self._settings)
        settings.max_new_tokens = num_tokens
        ids = torch.from_numpy(prompt).long()[None].to(self._device)
        hook = self._model.register_forward_pre_hook(count)
        try:
            with torch.inference_mode():
                out = self._model.generate(
                    ids, attention_mask=torch.ones_like(ids), generation_config=settings, streamer=clock,
                    assistant_model=self._assistant,
                )
        finally:
            hook.remove()
        new = out[0, ids.shape[1] :].tolist()
        seconds = (clock.times[-1] - clock.times[0]) / (sum(clock.counts) - clock.counts[0])
        return Generated(tuple(new), passes, seconds)


def _endless(model: Any) -> Any:
    """The model's generation settings, greedy, without an end-of-sequence id: every answer has full length."""
    settings = copy.deepcopy(model.generation_config)
    settings.do_sample = False
    settings.temperature = settings.top_p = settings.top_k = None
    settings.eos_token_id = None
    settings.pad_token_id = 0
    settings.max_length = None
    return settings
