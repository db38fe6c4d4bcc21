"""Targets that draft for themselves, put together from checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from actors.build import build_drafter, build_verifier, with_inline
from actors.drafter_specs import DrafterSpec, EarlyExitSpec, LayerSkipSpec
from actors.drafters.calibration import Calibration
from actors.drafters.layer_cost import pass_cost
from actors.drafters.shallow import ShallowDrafter
from actors.engine.shallow import Shallow
from actors.heads.exit import ExitConfig, ExitHead
from actors.heads.vocab import DraftVocabulary
from actors.inline import InlineVerifier
from actors.loading.tokenizer import load_tokenizer
from actors.messages import Context, DraftShape, Ids
from actors.sampling.params import SamplingParams
from actors.spec import InlineTier, ModelSpec
from tests.conftest import TinyModel

PROMPT = (np.arange(30, dtype=np.int32) * 37 + 11) % 250 + 4
VOCAB = 260


def spec(path: Path, tier: int = 1, **changes: Any) -> ModelSpec:
    return ModelSpec(**{"tier": tier, "model": str(path), "kv_tokens": 4096, "num_threads": 1, **changes})


def inline(path: Path, drafter: DrafterSpec, **changes: Any) -> InlineVerifier:
    target = spec(path, **changes)
    below = (InlineTier(spec(path, 0, **changes), window=3, drafter=drafter),)
    both = with_inline(build_verifier(target), target, below, law_support=64)
    assert isinstance(both, InlineVerifier)
    return both


def context(ids: Ids, round: int) -> Context:
    return Context("s", 0, ids.astype(np.int32), len(PROMPT), len(ids), SamplingParams(), round)


def speak(both: InlineVerifier, num_tokens: int) -> tuple[list[int], int]:
    """A greedy text, and how many draft tokens were checked for it."""
    ids, num_drafted = PROMPT, 0
    for round in range(num_tokens):
        verdict = both.step(context(ids, round), DraftShape(3)).result(timeout=60)
        assert (verdict.error, verdict.draft_error) == (None, None)
        ids, num_drafted = np.append(ids, verdict.tokens), num_drafted + verdict.num_draft
    return ids[len(PROMPT) :][:num_tokens].tolist(), num_drafted


def greedy(path: Path, num_tokens: int) -> list[int]:
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    out = model.generate(
        torch.from_numpy(PROMPT).long()[None], max_new_tokens=num_tokens, do_sample=False, eos_token_id=None
    )
    return out[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("drafter", [EarlyExitSpec(exit_layer=1), LayerSkipSpec(skip=(1,)), LayerSkipSpec()], ids=repr)
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_target_that_drafts_for_itself_says_what_it_says_alone(
    tiny_model: TinyModel, architecture: str, drafter: DrafterSpec
) -> None:
    path = tiny_model(architecture)
    both = inline(path, drafter)
    ids, num_drafted = speak(both, 20)
    stats = both.stats()
    both.shutdown()
    assert ids == greedy(path, 20)
    assert num_drafted == 3 * 19  # all rounds but the first
    assert (stats.num_pages, stats.num_sequences) == (4096 // 64, 1)  # one KV memory


def trained_exit(path: Path, directory: Path, **changes: Any) -> ExitHead:
    """An exit for the tiny model, which has learnt nothing."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    values: dict[str, Any] = {
        "hidden": 32, "vocab_size": VOCAB, "num_target_layers": 2, "feature_layers": (1,), "draft_vocab_size": 100,
        "inner": 16, "epsilon": 1e-6, **changes,
    }
    config = ExitConfig(**values)
    vocabulary = DraftVocabulary(np.sort(np.random.default_rng(2).permutation(VOCAB)[:100]), VOCAB)
    torch.manual_seed(1)
    head = ExitHead.fresh(config, model.model.norm.weight.detach(), model.get_output_embeddings().weight, vocabulary)
    head.save(directory, with_head=False)
    return head


@pytest.mark.parametrize("path_kind", [{}, {"weights": "int8"}, {"kernels": "portable"}], ids=str)
def test_an_untrained_exit_is_the_targets_own_head_over_fewer_ids(
    tiny_model: TinyModel, tmp_path: Path, path_kind: dict[str, Any]
) -> None:
    path = tiny_model("llama")
    head = trained_exit(path, tmp_path)
    both = inline(path, EarlyExitSpec(head=str(tmp_path)), **path_kind)
    drafter = both._drafter
    assert isinstance(drafter, ShallowDrafter)
    assert drafter.shallow.layers.tolist() == [0]
    assert drafter.shallow.exit is not None
    hidden = torch.randn(5, 32)
    logits = drafter.shallow.exit(hidden)
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    with torch.inference_mode():
        own = model.lm_head(model.model.norm(hidden))
    kept = torch.from_numpy(head.vocabulary.ids).long()
    assert (logits[:, kept] - own[:, kept]).abs().max() < (1e-4 if not path_kind.get("weights") else 0.1)
    others = np.setdiff1d(np.arange(VOCAB), head.vocabulary.ids)
    assert (logits[:, others] == -1e4).all()
    ids, num_drafted = speak(both, 12)
    both.shutdown()
    if not path_kind.get("weights"):
        assert ids == greedy(path, 12)
    assert num_drafted > 20


def test_a_stored_exit_is_the_same_again(tiny_model: TinyModel, tmp_path: Path) -> None:
    path = tiny_model("llama")
    head = trained_exit(path, tmp_path / "bare")
    with torch.no_grad():
        head.down.weight.normal_()
        head.head.weight.normal_()
    head.save(tmp_path / "whole")
    again = ExitHead.load(tmp_path / "whole", torch.zeros(VOCAB, 32))
    hidden = torch.randn(4, 32)
    assert torch.equal(head(hidden), again(hidden))
    output = transformers.AutoModelForCausalLM.from_pretrained(path).get_output_embeddings().weight
    bare = ExitHead.load(tmp_path / "bare", output)
    assert torch.equal(bare.head.weight, output[torch.from_numpy(bare.vocabulary.ids).long()])


def test_mistakes_are_one_line_that_names_the_fix(tiny_model: TinyModel, tmp_path: Path) -> None:
    path = tiny_model("llama")
    trained_exit(path, tmp_path / "exit")
    trained_exit(path, tmp_path / "other", num_target_layers=9, feature_layers=(4,))
    host = build_verifier(spec(path))
    tier = spec(path, 0)
    for drafter, line in (
        (EarlyExitSpec(exit_layer=2), "exit_layer 2: .* has 2 layers, .* choose 1 to 1"),
        (EarlyExitSpec(head=str(tmp_path / "other")), "its number of layers is 9, the target's 2; name a head that"),
        (EarlyExitSpec(head=str(tmp_path)), "has no config.json"),
        (LayerSkipSpec(skip=(3,)), "skip names layer 3: .* has the layers 1 to 2; remove it"),
        (LayerSkipSpec(skip=(1, 2)), "skip names all 2 layers .* leave some to draft with"),
    ):
        with pytest.raises(ValueError, match=line) as caught:
            build_drafter(tier, drafter, host=host)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="in its process: set inline: true"):
        build_drafter(tier, EarlyExitSpec(exit_layer=1))
    host.shutdown()
    with pytest.raises(ValueError, match="an exit follows one layer, before the last of 2"):
        trained_exit(path, tmp_path / "late", feature_layers=(2,))


def test_a_search_names_its_result_and_leaves_nothing_behind(
    tiny_model: TinyModel, caplog: pytest.LogCaptureFixture
) -> None:
    path = tiny_model("llama")
    host = build_verifier(spec(path))
    with caplog.at_level("INFO", "actors.drafters.layer_skip"):
        drafter = build_drafter(spec(path, 0), LayerSkipSpec(num_evaluations=5), host=host)
    assert isinstance(drafter, ShallowDrafter)
    skipped = {0, 1} - set(drafter.shallow.layers.tolist())
    assert f"drafting skips layers {[layer + 1 for layer in skipped]} of 2, found in 2 trials" in caplog.text
    host.engine.check_integrity()
    assert host.stats().num_sequences == 0
    host.shutdown()


def test_agreement_is_measured_on_what_the_target_writes(tiny_model: TinyModel) -> None:
    """All layers agree with themselves; so the spans, their contexts and their KV are what they should be."""
    path = tiny_model("llama")
    host = build_verifier(spec(path))
    calibration = Calibration(host, load_tokenizer(str(path)))
    every = Shallow(np.arange(2, dtype=np.int32), 1.0)
    assert calibration.agreement(every) == 1.0
    assert calibration.agreement(Shallow(np.array([1], np.int32), 0.6)) < 1.0
    calibration.close()
    host.shutdown()


def test_what_a_pass_costs_is_its_share_of_the_weights(tiny_model: TinyModel) -> None:
    config = transformers.AutoConfig.from_pretrained(tiny_model("llama"))
    assert pass_cost(config, 2) == 1.0
    layer, head = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 64, VOCAB * 32
    assert pass_cost(config, 1) == pytest.approx((layer + head) / (2 * layer + head))
    assert pass_cost(config, 1, 1000) == pytest.approx((layer + 1000) / (2 * layer + head))
