"""Random models of real shapes: sizes, seeds, dtypes, and a tokenizer that can say every id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from actors.loading import shapes
from actors.loading.checkpoint import load_config, load_generation_config, load_model, max_context_tokens, resolve
from actors.loading.errors import ModelNotFound
from actors.loading.support import check_supported
from actors.loading.tokenizer import eos_ids, fingerprint, load_tokenizer
from actors.spec import ModelSpec

TINY = [name for name in shapes.SHAPES if name.startswith("tiny-")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    return tmp_path


# From the model cards, in millions.
@pytest.mark.parametrize(
    ("shape", "millions"),
    [
        ("llama-1b", 1236), ("llama-3b", 3213), ("llama-8b", 8030), ("llama-70b", 70554), ("qwen3-0.6b", 596),
        ("qwen3-1.7b", 1721), ("qwen3-8b", 8191), ("smollm2-135m", 135),
    ],
)  # fmt: skip
def test_a_shape_has_the_size_of_its_namesake(shape: str, millions: int) -> None:
    config = shapes.random_config(f"random:{shape}")
    check_supported(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == millions


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", TINY)
def test_a_random_model_is_what_its_architecture_would_initialise(shape: str, dtype: str) -> None:
    """Buffers and constants included, which a model emptied and refilled could lose."""
    model = load_model(ModelSpec(tier=0, model=f"random:{shape}", dtype=dtype))
    reference = AutoModelForCausalLM.from_config(shapes.random_config(f"random:{shape}"), dtype=getattr(torch, dtype))
    assert {str(p.dtype) for p in model.parameters()} == {f"torch.{dtype}"}
    buffers = dict(reference.named_buffers())
    assert buffers
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name
    ours = dict(model.named_parameters())
    assert ours.keys() == dict(reference.named_parameters()).keys()
    for name, parameter in reference.named_parameters():
        a, b = ours[name].float(), parameter.float()
        assert a.shape == b.shape and abs(a.mean() - b.mean()) < 0.02 and abs(a.std() - b.std()) < 0.02, name
    assert not model.training and not any(p.requires_grad for p in model.parameters())


def test_a_tied_shape_shares_its_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    tied = {**shapes.SHAPES["tiny-llama"], "tie_word_embeddings": True}
    monkeypatch.setitem(shapes.SHAPES, "tiny-tied", tied)
    model: Any = shapes.random_model("random:tiny-tied", torch.float32, "cpu")
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert abs(float(model.lm_head.weight.detach().std()) - 0.2) < 0.01


def test_weights_are_a_function_of_the_seed_and_leave_other_randomness_alone() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    first, again, other = (
        shapes.random_model(f"random:tiny-llama{seed}", torch.float32, "cpu").state_dict() for seed in ("", ":0", ":7")
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_no_weight_is_ever_held_in_another_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """An 8B model must not pass through 32 GB of fp32."""
    seen: set[torch.dtype] = set()
    empty_like = torch.empty_like

    def spy(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        made = empty_like(tensor, **options)
        if made.numel() > 1000:
            seen.add(made.dtype)
        return made

    monkeypatch.setattr(torch, "empty_like", spy)
    shapes.random_model("random:tiny-llama", torch.bfloat16, "cpu")
    assert seen == {torch.bfloat16}


def test_a_shape_is_found_like_a_checkpoint_without_weights(cache: Path) -> None:
    directory = resolve("random:tiny-qwen3:5")
    assert directory == resolve("random:tiny-qwen3") == cache / f"random-tiny-qwen3-{shapes.VERSION}"
    assert not [file for file in Path(directory).iterdir() if "safetensors" in file.name]
    assert sorted(file.suffix for file in cache.iterdir()) == ["", ".lock"], "nothing half-written is left"
    assert max_context_tokens(load_config("random:tiny-qwen3")) == 1024
    settings = load_generation_config("random:tiny-qwen3")
    assert settings is not None
    assert eos_ids(load_tokenizer("random:tiny-qwen3"), settings) == (0,)


def test_the_tokenizer_gives_bytes_back_and_has_a_word_for_every_other_id() -> None:
    tokenizer = load_tokenizer("random:tiny-llama")
    text = "Grüße, 世界!\n\t  two  spaces <tags>"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and len(ids) == len(text.encode())
    assert len(tokenizer) == 512
    words = [tokenizer.decode([token_id]) for token_id in range(260, 512)]
    assert len(set(words)) == len(words) and all(word.startswith(" ") and word[1:].isalpha() for word in words)
    chat = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "<|user|>hi<|endoftext|>"


def test_shapes_of_one_vocabulary_share_their_tokenizer_and_it_is_no_chance() -> None:
    assert fingerprint(load_tokenizer("random:tiny-llama")) == fingerprint(load_tokenizer("random:tiny-qwen3"))
    saved = AutoTokenizer.from_pretrained(resolve("random:tiny-llama"))
    assert fingerprint(shapes.stand_in_tokenizer(512)) == fingerprint(saved)
    assert shapes.SHAPES["llama-1b"]["vocab_size"] == shapes.SHAPES["llama-8b"]["vocab_size"]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("random:llama-9b", "use random: with one of llama-1b"),
        ("random:llama-1b:x", "write for instance random:llama-1b:7"),
    ],
)
def test_an_unknown_shape_or_a_bad_seed_names_the_fix(model: str, reason: str) -> None:
    with pytest.raises(ModelNotFound, match=reason) as refusal:
        resolve(model)
    assert "\n" not in str(refusal.value)
