"""GGUF files: converted once, whole or not at all, to exactly the values of their blocks."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.loading import gguf as ours
from actors.loading.checkpoint import (
    ModelNotFound,
    UnsupportedModel,
    load_config,
    load_generation_config,
    load_model,
    resolve,
)
from actors.loading.tokenizer import eos_ids, load_tokenizer
from tests.models import tiny_model, tiny_spec
from tests.unit.loading.greedy import PROMPTS, count_near_ties, engine_ids, num_distinct

gguf = pytest.importorskip("gguf", reason="gguf is not installed: pip install gguf")

NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def gguf_name(name: str) -> str:
    """llama.cpp's name of a weight of a Llama."""
    module = name.removesuffix(".weight")
    if module in OUTER:
        return f"{OUTER[module]}.weight"
    _, _, layer, rest = module.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.weight"


def write(path: Path, block: str = "Q4_1", architecture: str = "llama") -> dict[str, torch.Tensor]:
    """A tiny Llama in GGUF, its matrices in blocks of type `block`; returns the values they stand for."""
    model = tiny_model("llama")
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    alphabet = [chr(code) for code in range(33, 33 + config.vocab_size - 3)]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<s>", "</s>", *alphabet, "ab"])
    writer.add_token_types([3, 3, *([1] * (len(alphabet) + 1))])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    kind = gguf.GGMLQuantizationType[block]
    wanted = {}
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        turned = values
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        split = next((count for part, count in heads.items() if part in name), None)
        if split is not None:  # llama.cpp interleaves the halves of rotary dimensions
            turned = values.reshape(split, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        if values.ndim == 2:
            stored = gguf.quants.quantize(np.ascontiguousarray(turned), kind)
            writer.add_tensor(gguf_name(name), stored, raw_dtype=kind)
            back = gguf.quants.dequantize(stored, kind)
            if split is not None:
                back = back.reshape(split, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
            wanted[name] = torch.from_numpy(back.copy())
        else:
            writer.add_tensor(gguf_name(name), values)
            wanted[name] = tensor
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return wanted


@pytest.mark.parametrize("block", ["Q4_0", "Q4_1", "Q5_1", "Q8_0", "F16", "F32"])
def test_a_converted_file_holds_exactly_the_values_of_its_blocks(tmp_path: Path, block: str) -> None:
    wanted = write(tmp_path / "tiny.gguf", block)
    model = load_model(tiny_spec(model=str(tmp_path / "tiny.gguf")))
    state = model.state_dict()
    assert state.keys() == wanted.keys()
    assert all(torch.equal(state[name], weight) for name, weight in wanted.items())
    assert type(model) is type(tiny_model("llama"))


@pytest.mark.exactness
def test_greedy_ids_are_those_of_the_values_in_plain_transformers(tmp_path: Path) -> None:
    wanted = write(tmp_path / "tiny.gguf", "Q4_1")
    law = tiny_model("llama")
    law.load_state_dict(wanted)
    ids = engine_ids(load_model(tiny_spec(model=str(tmp_path / "tiny.gguf"))), PROMPTS, 16)
    assert num_distinct(ids) > 15 and count_near_ties(law, PROMPTS, ids, 1e-3) <= 1


def test_configuration_tokenizer_and_end_ids_come_from_the_file(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf")
    name = str(tmp_path / "tiny.gguf")
    config = load_config(name)
    assert config.max_position_embeddings == 1024 and getattr(config, "quantization_config", None) is None
    tokenizer = load_tokenizer(name)
    assert tokenizer.decode(tokenizer.encode("abc", add_special_tokens=False)) == "abc"
    assert eos_ids(tokenizer, load_generation_config(name)) == (1,)


def test_a_directory_with_one_file_is_that_file_and_with_several_a_question(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder / "Tiny Model.Q4.GGUF")
    found = resolve(str(folder))
    assert found == resolve(str(folder / "Tiny Model.Q4.GGUF")) and isinstance(found, Path)
    assert found.parent == cache and found.name.startswith("tiny-model-q4-") and found.name.endswith("-fp32-v1")
    (folder / "other.gguf").touch()
    with pytest.raises(ModelNotFound, match=r"several GGUF files \(Tiny Model.Q4.GGUF, other.gguf\): name one"):
        resolve(str(folder))
    (folder / "config.json").write_text("{}")
    assert resolve(str(folder)) == folder, "a Hugging Face checkpoint that also carries GGUF files"


def test_a_file_is_converted_once_until_it_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Path] = []

    def convert(gguf: Path, directory: Path, title: str) -> None:
        calls.append(directory)
        (directory / "config.json").write_text("{}")

    monkeypatch.setattr(ours, "_write_checkpoint", convert)
    file = tmp_path / "m.gguf"
    file.write_bytes(bytes(range(256)) * 20000)
    first = resolve(str(file))
    assert resolve(str(file)) == first and len(calls) == 1
    copy = tmp_path / "elsewhere" / "m.gguf"
    copy.parent.mkdir()
    copy.write_bytes(file.read_bytes())
    state = file.stat()
    os.utime(copy, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert resolve(str(copy)) == first, "the same file in another place"
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns + 10))
    second = resolve(str(file))
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    third = resolve(str(file))
    assert len({first, second, third}) == 3 and len(calls) == 3


def test_racing_callers_convert_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []

    def convert(gguf: Path, directory: Path, title: str) -> None:
        calls.append(directory)
        (directory / "config.json").write_text("{}")

    monkeypatch.setattr(ours, "_write_checkpoint", convert)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    found: list[Path | str] = []
    threads = [threading.Thread(target=lambda: found.append(resolve(str(tmp_path / "m.gguf")))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1 and len(found) == 4 and len(set(found)) == 1


def test_what_a_killed_conversion_left_is_cleared_by_the_next(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "tiny.gguf")
    name = ours._directory_name(tmp_path / "tiny.gguf")
    (cache / f"{name}.abandoned").mkdir(parents=True)
    directory = resolve(str(tmp_path / "tiny.gguf"))
    assert [path for path in cache.iterdir() if path.is_dir()] == [directory]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("m-00001-of-00003.gguf", b"GGUF", "one of several parts: join them"),
        ("m.gguf", b"", "cannot be read"),
        ("m.gguf", b"not a gguf file at all, whatever its name says", "cannot be read"),
        ("m.gguf", b"GGUF\x03\0\0\0" + b"\xff" * 40, "cannot be read"),
    ],
)
def test_files_that_cannot_be_read_are_refused_in_one_line(
    tmp_path: Path, cache: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises((ModelNotFound, UnsupportedModel), match=reason) as refusal:
        resolve(str(tmp_path / name))
    assert "\n" not in str(refusal.value) and name in str(refusal.value)
    assert not [path for path in cache.glob("*") if path.is_dir()]


def test_an_unknown_architecture_is_refused_in_one_line(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf", architecture="llama")
    data = (tmp_path / "tiny.gguf").read_bytes()
    key = b"general.architecture"
    start = data.index(key) + len(key) + 4 + 8
    (tmp_path / "tiny.gguf").write_bytes(data[:start] + b"xlama" + data[start + 5 :])
    with pytest.raises(UnsupportedModel, match="cannot be read") as refusal:
        resolve(str(tmp_path / "tiny.gguf"))
    assert "\n" not in str(refusal.value)


def test_a_full_disk_is_told_before_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "tiny.gguf")
    usage: Any = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(ours.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UnsupportedModel, match="make room, or set OUTRIDER_CACHE"):
        resolve(str(tmp_path / "tiny.gguf"))


def test_a_missing_package_is_named_with_its_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "tiny.gguf")
    monkeypatch.setattr(ours.util, "find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(UnsupportedModel, match="needs: pip install gguf$"):
        resolve(str(tmp_path / "tiny.gguf"))
