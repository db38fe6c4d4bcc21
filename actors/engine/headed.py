"""An `eagle` head as a `ModelRunner`: its layers run on the engine's own paths, on states instead of embeddings.

Everything linear around the layers is brought to where it costs least, when the head is loaded:

- A row's input is W [norm(e); norm(g)] = W_e norm(e) + W_g norm(g) of its token's embedding e and the state g of the
  position before. The first half is a table with a row a token, made once. The second half is made where g is made,
  once a position, and is what the *plane* holds, a row a slot.
- A row's own state goes through an RMS norm to the logits, and through another one and W_g to the plane. Both norms
  divide by the same number, so their weights are multiplied into the matrices and these stand one below the other: the
  layers and this one head are a plain Llama-like model, whose "logits" are the drafted ids' and then the state.
- That model's embedding is the buffer of a pass's inputs, and its token ids are row numbers: so every path (fused,
  layer by layer, captured graphs) runs it as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import transformers
from torch import nn

from actors.engine.linear import make_linear
from actors.engine.make import make_runner
from actors.engine.step import Int32s, ModelRunner, StepInput
from actors.heads.eagle import EagleConfig, EagleHead
from actors.spec import ModelSpec

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_TABLE_ROWS = 4096  # of the table at a time


@runtime_checkable
class _OnDevice(Protocol):
    """A runner whose logits need not leave the device."""

    def forward_device(self, step: StepInput) -> torch.Tensor:
        """As `forward`."""
        ...


class EagleRunner:
    """Runs an `eagle` head (see `TakesFeatures`). Owns the plane of states; the layers' keys and values are below."""

    shares_head = False

    @torch.no_grad()
    def __init__(
        self, head: EagleHead, spec: ModelSpec, make: Callable[[Any, ModelSpec], ModelRunner] = make_runner
    ) -> None:
        """`make` takes the layers over. Raises `KernelBuildError`."""
        config = head.config
        self.vocab_size = config.vocab_size
        self.features_taken = config.feature_size
        self._vocabulary = head.vocabulary
        self.known_ids = self._vocabulary.known_ids
        self._num_ids = config.draft_vocab_size
        self._page_tokens = spec.page_tokens
        self._device = spec.device
        self._config = config
        dtype = _DTYPES[spec.dtype]
        from_token, from_state = _halves(head)
        self._table = _table(head, from_token).to(spec.device, dtype)
        self._fuse = _linear(head.fuse.weight, spec)
        self._from_state = _linear(from_state, spec)
        output = torch.cat([head.head.weight.float() * head.norm.weight.float(), from_state])
        fused = spec.device == "cpu" and spec.kernels == "native"  # such a pass computes in float32 whatever the dtype
        self._inputs = torch.zeros(
            spec.max_batch_tokens, config.hidden, dtype=torch.float32 if fused else dtype, device=spec.device
        )
        self._row_numbers = np.arange(spec.max_batch_tokens, dtype=np.int32)
        core = _llama(head, output).to(device=spec.device, dtype=dtype)
        core.set_input_embeddings(nn.Embedding(spec.max_batch_tokens, config.hidden, _weight=self._inputs))
        runner = make(core, spec)
        self._run_core = runner.forward_device if isinstance(runner, _OnDevice) else runner.forward
        # One page more than can be owned, as beside keys and values: it stays zero.
        shape = (spec.num_pages + 1, spec.page_tokens, config.hidden)
        self._pages = torch.zeros(shape, dtype=dtype, device=spec.device)
        self._plane = self._pages.view(-1, config.hidden)  # [slots, hidden]; the last row: before the first token

    @torch.inference_mode()
    def forward(self, step: StepInput) -> torch.Tensor:
        """One packed pass: logits of `step.logit_rows`, [num_logits, vocab_size] float32 on CPU."""
        if len(step.moves):  # each ascends along its text, so none reads what another has written
            moves = self._index(step.moves).long()
            self._plane[moves[:, 1]] = self._plane[moves[:, 0]]
        if len(step.copies):
            copies = self._index(step.copies).long()
            self._pages[copies[:, 1]] = self._pages[copies[:, 0]]
        if len(step.feature_slots):
            self._plane[self._index(step.feature_slots).long()] = self._states(step.features)
        count = len(step.input_ids)
        before = self._plane.index_select(0, self._index(self._before(step)))
        torch.add(self._table.index_select(0, self._index(step.input_ids)), before, out=self._inputs[:count])
        rows = _with_last(step)
        out = self._run_core(replace(step, input_ids=self._row_numbers[:count], logit_rows=rows))
        self._keep(step, rows, out[:, self._num_ids :])
        return self._vocabulary.widen(out[: len(step.logit_rows), : self._num_ids].float().cpu())

    def _before(self, step: StepInput) -> Int32s:
        """`StepInput.before`, and the last slot where that is none. Most steps have a row of each sequence, and most of
        these rows follow one in the same page."""
        if len(step.input_ids) == len(step.kv_len) and (step.positions % self._page_tokens).all():
            return step.slots - np.int32(1)
        return step.before(self._page_tokens) % np.int32(len(self._plane))

    def _states(self, features: np.ndarray) -> torch.Tensor:
        """Features [n, width] float16 -> what the plane holds of them, [n, hidden]."""
        config = self._config
        layers = torch.from_numpy(features).to(self._device).float().view(len(features), -1, config.hidden)
        fused = self._fuse(_unit(layers, config).flatten(1).to(self._plane.dtype))
        states: torch.Tensor = self._from_state(_unit(fused.float(), config).to(self._plane.dtype))
        return states.to(self._plane.dtype)

    def _keep(self, step: StepInput, rows: Int32s, states: torch.Tensor) -> None:
        """Put own states where no features of the same positions are known."""
        slots = step.slots[rows]
        if len(step.feature_slots):
            own = ~np.isin(slots, step.feature_slots)
            slots, states = slots[own], states[torch.from_numpy(own).to(self._device)]
        self._plane.index_copy_(0, self._index(slots).long(), states.to(self._plane.dtype))

    def _index(self, numbers: Int32s) -> torch.Tensor:
        return torch.from_numpy(numbers).to(self._device)


def _unit(x: torch.Tensor, config: EagleConfig) -> torch.Tensor:
    return nn.functional.rms_norm(x, x.shape[-1:], eps=config.core.epsilon)


def _with_last(step: StepInput) -> Int32s:
    """The rows whose logits are wanted, then every sequence's last row that is not among them: the row that follows it
    may read its state."""
    last = step.cu_query[1:] - 1
    if len(step.logit_rows) == len(step.input_ids):
        return step.logit_rows
    missing = last[~np.isin(last, step.logit_rows)]
    return np.concatenate([step.logit_rows, missing]).astype(np.int32) if len(missing) else step.logit_rows


def _halves(head: EagleHead) -> tuple[torch.Tensor, torch.Tensor]:
    """What W does to a normed embedding, and to a normed state before its norm's weights: [hidden, hidden] each."""
    hidden = head.config.hidden
    weight = head.join.weight.float()
    return weight[:, :hidden], weight[:, hidden:] * head.state_norm.weight.float()


def _table(head: EagleHead, from_token: torch.Tensor) -> torch.Tensor:
    """What each token adds to its row's input: [vocab_size, hidden]."""
    embedding = head.embedding
    starts = range(0, len(embedding), _TABLE_ROWS)
    return torch.cat([head.token_norm(embedding[a : a + _TABLE_ROWS].float()) @ from_token.T for a in starts])


def _linear(weight: torch.Tensor, spec: ModelSpec) -> nn.Module:
    kind = "int8" if spec.weights == "int4" else spec.weights  # small, and what comes out is read by all rows to come
    return make_linear(kind, spec.kernels, weight.to(spec.device, _DTYPES[spec.dtype]), None)


def _llama(head: EagleHead, output: torch.Tensor) -> Any:
    """The layers as a transformers model with `output` [columns, hidden] as its head, over a norm without weights."""
    core = head.config.core
    model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=len(output), hidden_size=head.config.hidden, intermediate_size=core.intermediate,
        num_hidden_layers=core.num_layers, num_attention_heads=core.num_heads, num_key_value_heads=core.num_kv_heads,
        head_dim=core.head_dim, rms_norm_eps=core.epsilon, max_position_embeddings=core.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": core.rope_theta}, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None,
    )).train(False).requires_grad_(False)
    model.lm_head.weight.copy_(output)
    for layer, own in zip(model.model.layers, head.layers, strict=True):
        for theirs, name in _NAMES.items():
            layer.get_parameter(f"{theirs}.weight").copy_(own.get_parameter(f"{name}.weight"))
    return model


_NAMES = {
    "input_layernorm": "input_norm", "post_attention_layernorm": "mlp_norm", "self_attn.q_proj": "query",
    "self_attn.k_proj": "key", "self_attn.v_proj": "value", "self_attn.o_proj": "out", "mlp.gate_proj": "gate",
    "mlp.up_proj": "up", "mlp.down_proj": "down",
}  # fmt: skip
