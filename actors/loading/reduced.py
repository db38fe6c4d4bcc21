"""Draft models trained by `outrider train draft` or `parallel`: a few layers, with what they share with the target.

Their `config.json` is an ordinary one of transformers with a section `outrider_head` beside it. `model.safetensors`
holds the layers and the final norm, `draft_vocab_ids` [V'] int32 ascending where the vocabulary is reduced, and what
was trained of the rest: `lm_head.weight` [V', hidden], `mask_embedding` [num_masks, hidden] (`actors.heads.parallel`).
What is missing, `model.embed_tokens.weight` [V, hidden] above all, is the target's, which the section names.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM

from actors.heads.directory import SECTION
from actors.heads.vocab import DraftVocabulary
from actors.loading.errors import ModelNotFound, first_line
from actors.spec import ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

KINDS = ("draft", "parallel")
FORMAT = 1
WEIGHTS = "model.safetensors"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
IDS, MASKS = "draft_vocab_ids", "mask_embedding"


def section(config: Any) -> dict[str, Any] | None:
    """What a configuration says of such a draft model; None: it is another model."""
    found = getattr(config, SECTION, None)
    return found if isinstance(found, dict) and found.get("kind") in KINDS else None


def target_of(source: Path | str) -> str | None:
    """The target that the draft model in a directory belongs to, as it was named at training; None: another model."""
    if not isinstance(source, Path):
        return None
    try:
        found = json.loads((source / "config.json").read_text()).get(SECTION)
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("kind") not in KINDS:
        return None
    return str(found.get("target") or "") or None


def load(name: str, source: Path, config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The model, whole: its attribute `draft_vocabulary` says what the rows of its output mean.

    Raises `ModelNotFound`: weights are missing, here or in the target.
    """
    own = section(config)
    assert own is not None
    if own.get("format") != FORMAT:
        raise ModelNotFound(f"{name} has the format {own.get('format')!r}, this version reads {FORMAT}: train it again")
    try:
        tensors = load_file(source / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ModelNotFound(f"{name}: {WEIGHTS} is missing or damaged: copy or train it again") from error
    vocabulary = _vocabulary(name, own, config, tensors.pop(IDS, None))
    masks = tensors.pop(MASKS, None)
    if own["kind"] == "parallel" and (masks is None or masks.ndim != 2 or len(masks) != own.get("num_masks")):
        raise ModelNotFound(f"{name}: {MASKS} in {WEIGHTS} is not what its config.json says: copy or train it again")
    missing = {EMBEDDING, HEAD} - tensors.keys()
    if missing:
        shared = _of_target(str(own.get("target") or ""), missing, name)
        if HEAD in missing:
            shared[HEAD] = vocabulary.part(shared[HEAD])
        tensors |= shared
    for key, rows in ((EMBEDDING, vocabulary.vocab_size), (HEAD, len(vocabulary.ids))):
        if len(tensors[key]) != rows:
            raise ModelNotFound(
                f"{name}: {key} has {len(tensors[key])} rows, and {rows} ids need one each: copy or train it again"
            )
    if masks is not None and masks.shape[1] != tensors[EMBEDDING].shape[1]:
        raise ModelNotFound(f"{name}: {MASKS} in {WEIGHTS} is of another width than its embedding: train it again")
    if masks is not None:
        tensors[EMBEDDING] = torch.cat([tensors[EMBEDDING].to(dtype), masks.to(dtype)])
    model = _empty(config, dtype)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    for module, key in ((embedding, EMBEDDING), (head, HEAD)):
        module.weight = nn.Parameter(tensors.pop(key).to(dtype), requires_grad=False)
    embedding.num_embeddings, head.out_features = len(embedding.weight), len(head.weight)
    try:
        absent, unknown = model.load_state_dict({k: v.to(dtype) for k, v in tensors.items()}, strict=False)
    except RuntimeError as error:  # shapes
        raise ModelNotFound(f"the weights of {name} do not fit its config.json: {first_line(error)}") from error
    names = {id(parameter): key for key, parameter in model.named_parameters(remove_duplicate=False)}
    lacking = set(absent) - {names[id(embedding.weight)], names[id(head.weight)]}
    if lacking or unknown:
        raise ModelNotFound(f"{name}: weights are missing or unknown ({min([*lacking, *unknown])}): train it again")
    model.draft_vocabulary = vocabulary
    result: PreTrainedModel = model
    return result


def _vocabulary(name: str, own: dict[str, Any], config: PreTrainedConfig, ids: torch.Tensor | None) -> DraftVocabulary:
    """Which ids its output knows; None: all."""
    size = own.get("vocab_size")
    if type(size) is not int or size != config.vocab_size:
        raise ModelNotFound(
            f"{name}: {SECTION}.vocab_size in its config.json is {size!r}, beside a vocab_size of {config.vocab_size}: "
            "copy or train it again"
        )
    try:
        return DraftVocabulary(torch.arange(size).numpy() if ids is None else ids.numpy(), size)
    except ValueError as error:
        raise ModelNotFound(f"{name}: {IDS} in {WEIGHTS} cannot be used: {error}: copy or train it again") from error


def _empty(config: PreTrainedConfig, dtype: torch.dtype) -> Any:
    """The model with hardly any embedding and head: both are put in place afterwards."""
    small = copy.deepcopy(config)
    small.vocab_size, small.pad_token_id, small.tie_word_embeddings = 1, None, False
    model: Any = AutoModelForCausalLM.from_config(small, dtype=dtype)  # type: ignore[no-untyped-call]
    model.config.vocab_size = config.vocab_size
    return model


def _of_target(target: str, wanted: set[str], name: str) -> dict[str, torch.Tensor]:
    """Embedding and output head of the target, read alone where its files allow that."""
    from actors.loading.checkpoint import load_config, load_model, resolve

    if not target:
        raise ModelNotFound(f"{name} lacks its embedding and names no target to take it from: train it again")
    try:
        source, config = resolve(target), load_config(target)
    except ModelNotFound as error:
        raise ModelNotFound(
            f"{name} shares its embedding with {target!r}, which cannot be had ({error}): put the target there, or "
            f"name it in {SECTION}.target of {name}/config.json"
        ) from error
    plain = getattr(config, "quantization_config", None) is None
    found = _read(source, wanted, bool(config.get_text_config().tie_word_embeddings)) if plain else {}
    if wanted - found.keys():
        model: Any = load_model(ModelSpec(tier=0, model=target))
        ends = {EMBEDDING: model.get_input_embeddings(), HEAD: model.get_output_embeddings()}
        found = {key: module.weight.detach() for key, module in ends.items()}
    return {key: found[key] for key in wanted}


def _read(source: Path | str, wanted: set[str], tied: bool) -> dict[str, torch.Tensor]:
    """Those of the tensors that stand in a directory's safetensors files under their usual names."""
    found: dict[str, torch.Tensor] = {}
    for file in sorted(source.glob("*.safetensors")) if isinstance(source, Path) else ():
        with safe_open(file, "pt") as opened:
            names = set(opened.keys())
            for key in wanted & names:
                found[key] = opened.get_tensor(key)
            if tied and HEAD in wanted and EMBEDDING in names:
                found[HEAD] = opened.get_tensor(EMBEDDING)
    return found
