"""GPTQ, AWQ and fbgemm files: what is packed by the book, bit by bit, comes out as scale * (integer - zero)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM

from actors.loading.checkpoint import ModelNotFound, UnsupportedModel, load_model
from actors.loading.packed import awq_weight, fbgemm_weight, gptq_weight
from actors.spec import ModelSpec
from tests.models import tiny_model, tiny_spec
from tests.unit.loading.greedy import PROMPTS, count_near_ties, engine_ids, num_distinct


def pack_bits(columns: torch.Tensor, bits: int) -> torch.Tensor:
    """[count, cols] -> [words, cols] int32, through one big Python integer per column."""
    packed = []
    for column in columns.t().tolist():
        stream = sum(value << (bits * i) for i, value in enumerate(column))
        words = [(stream >> (32 * w)) & 0xFFFFFFFF for w in range(-(-len(column) * bits // 32))]
        packed.append([word - (1 << 32) if word >> 31 else word for word in words])
    return torch.tensor(packed, dtype=torch.int32).t().contiguous()


class Layer:
    """A random quantised layer [in, out], and what it stands for."""

    def __init__(self, num_inputs: int, num_outputs: int, bits: int, group: int, seed: int, act_order: bool) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.bits = bits
        num_groups = num_inputs // group
        self.integers = torch.randint(0, 1 << bits, (num_inputs, num_outputs), generator=draw)
        self.zeros = torch.randint(1, 1 << bits, (num_groups, num_outputs), generator=draw)
        self.scales = (torch.rand(num_groups, num_outputs, generator=draw) / (1 << bits) + 1e-3).half()
        self.groups = torch.arange(num_inputs) // group
        if act_order:
            self.groups = self.groups[torch.randperm(num_inputs, generator=draw)]

    @property
    def weight(self) -> torch.Tensor:
        """[out, in] fp64: the plain formula."""
        return (self.scales.double()[self.groups] * (self.integers - self.zeros[self.groups])).t()

    def gptq(self, less_one: bool, g_idx: bool = True) -> dict[str, torch.Tensor]:
        """Its parts in a GPTQ file."""
        parts = {
            "qweight": pack_bits(self.integers, self.bits),
            "qzeros": pack_bits((self.zeros - int(less_one)).t(), self.bits).t().contiguous(),
            "scales": self.scales,
        }
        return {**parts, "g_idx": self.groups.int()} if g_idx else parts

    def awq(self) -> dict[str, torch.Tensor]:
        """Its parts in an AWQ GEMM file: eight columns to a word, the even ones first."""
        order = [0, 2, 4, 6, 1, 3, 5, 7]

        def words(values: torch.Tensor) -> torch.Tensor:
            shuffled = values.reshape(len(values), -1, 8)[:, :, order].reshape(len(values), -1)
            return pack_bits(shuffled.t(), 4).t().contiguous()

        return {"qweight": words(self.integers), "qzeros": words(self.zeros), "scales": self.scales}


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("less_one", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_a_gptq_layer_is_scale_times_integer_less_zero(bits: int, less_one: bool, act_order: bool) -> None:
    layer = Layer(96, 64, bits, 32, seed=bits, act_order=act_order)
    settings = {"bits": bits, "group_size": 32, "checkpoint_format": "gptq" if less_one else "gptq_v2"}
    weight = gptq_weight(layer.gptq(less_one), settings)
    assert weight.dtype == torch.float32 and weight.is_contiguous()
    assert torch.equal(weight.double(), layer.weight), "fp32 holds these products exactly"


def test_a_gptq_layer_without_group_index_has_consecutive_groups() -> None:
    layer = Layer(96, 64, 4, 32, seed=1, act_order=False)
    weight = gptq_weight(layer.gptq(True, g_idx=False), {"bits": 4, "group_size": 32})
    assert torch.equal(weight.double(), layer.weight)
    whole = Layer(96, 64, 4, 96, seed=2, act_order=False)
    weight = gptq_weight(whole.gptq(True, g_idx=False), {"bits": 4, "group_size": -1})
    assert torch.equal(weight.double(), whole.weight)


def test_a_gptq_layer_may_have_more_bits_than_the_settings_say() -> None:
    layer = Layer(64, 32, 8, 32, seed=3, act_order=False)
    assert torch.equal(gptq_weight(layer.gptq(True), {"bits": 4}).double(), layer.weight)


def test_an_awq_layer_is_scale_times_integer_less_zero() -> None:
    layer = Layer(96, 64, 4, 32, seed=4, act_order=False)
    assert torch.equal(awq_weight(layer.awq(), {"bits": 4, "version": "gemm"}).double(), layer.weight)


def test_an_fbgemm_layer_is_fp8_times_the_scale_of_its_row() -> None:
    weight = torch.randn(32, 64).to(torch.float8_e4m3fn)
    scale = torch.rand(32, 1)
    assert torch.equal(fbgemm_weight({"weight": weight, "weight_scale": scale}, {}), weight.float() * scale)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
def test_gptqmodels_own_packing_is_read_as_gptqmodel_reads_it(bits: int, version: str) -> None:
    torch_linear = pytest.importorskip("gptqmodel.nn_modules.qlinear.torch", reason="gptqmodel is not installed")
    from gptqmodel.quantization.config import QuantizeConfig
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    layer = Layer(96, 64, bits, 32, seed=bits, act_order=True)
    linear = nn.Linear(96, 64, bias=False)
    linear.weight.data = layer.weight.float()
    theirs = torch_linear.TorchLinear(
        bits=bits, group_size=32, sym=False, desc_act=True, in_features=96, out_features=64, bias=False,
        register_buffers=True,
    )  # fmt: skip
    zeros = layer.zeros.clone()
    zeros[0, ::3] = 0  # their subtraction of one borrows from the neighbour; ours must give back
    linear.weight.data = (layer.scales.float()[layer.groups] * (layer.integers - zeros[layer.groups])).t().contiguous()
    theirs.pack(linear, layer.scales.float().t(), zeros.float().t(), layer.groups.int())
    if version == "gptq":
        convert_gptq_v2_to_v1_format_module(theirs, QuantizeConfig(bits=bits, group_size=32))
    parts = {name: getattr(theirs, name).clone() for name in ("qweight", "qzeros", "scales", "g_idx")}
    weight = gptq_weight(parts, {"bits": bits, "group_size": 32, "checkpoint_format": version})
    assert torch.equal(weight, linear.weight.data)


def test_autoawqs_packing_as_gptqmodel_keeps_it_is_read_alike() -> None:
    packing = pytest.importorskip(
        "gptqmodel.quantization.awq.utils.packing_utils", reason="gptqmodel is not installed"
    )
    layer = Layer(96, 64, 4, 32, seed=5, act_order=False)
    qweight, qzeros = packing.pack_awq(layer.integers.int(), layer.zeros.int(), 4)
    theirs = packing.dequantize_gemm(qweight, qzeros, layer.scales.float(), 4, 32)
    ours = awq_weight({"qweight": qweight, "qzeros": qzeros, "scales": layer.scales}, {"bits": 4})
    assert torch.equal(ours, theirs.t()) and torch.equal(ours.double(), layer.weight)


def bnb_int8(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Parts of a weight [out, in] as LLM.int8 keeps them, and what they stand for."""
    largest = weight.abs().amax(1)
    integers = (weight / largest[:, None] * 127).round().to(torch.int8)
    parts = {"weight": integers, "SCB": largest, "weight_format": torch.zeros((), dtype=torch.uint8)}
    return parts, integers.float() * largest[:, None] * 7.874015718698502e-3


def bnb_4bit(weight: torch.Tensor, nested: bool) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Parts of a weight [out, in] in 4 bits; blocks of 64 run over the ends of rows."""
    code = torch.linspace(-1, 1, 16) ** 3  # the file carries its code, so any will do
    flat = torch.nn.functional.pad(weight.flatten(), (0, -weight.numel() % 64)).view(-1, 64)
    absmax = flat.abs().amax(1)
    told: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": list(weight.shape)}
    parts = {"weight.quant_map": code}
    if nested:
        outer_code, offset = torch.linspace(-1, 1, 256), float(absmax.mean())
        blocks = torch.nn.functional.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
        outer = blocks.abs().amax(1)
        stored = ((blocks / outer[:, None])[..., None] - outer_code).abs().argmin(-1).flatten()[: len(absmax)]
        parts |= {"weight.absmax": stored.to(torch.uint8), "weight.nested_absmax": outer}
        parts["weight.nested_quant_map"] = outer_code
        told |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        absmax = outer_code[stored] * outer.repeat_interleave(256)[: len(absmax)] + offset
    else:
        parts["weight.absmax"] = absmax
    codes = (flat[..., None] / flat.abs().amax(1)[:, None, None] - code).abs().argmin(-1)
    values = (code[codes] * absmax[:, None]).flatten()[: weight.numel()].view(weight.shape)
    codes = codes.flatten()[: weight.numel()].to(torch.uint8)
    parts["weight"] = ((codes[::2] << 4) | codes[1::2])[:, None]
    parts["weight.quant_state.bitsandbytes__nf4"] = torch.tensor(list(json.dumps(told).encode()), dtype=torch.uint8)
    return parts, values


def quantise(weight: torch.Tensor, settings: dict[str, Any], seed: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Parts of a weight [out, in] (GPTQ, AWQ: of another, random one), and what they stand for."""
    match settings["quant_method"]:
        case "fbgemm_fp8":
            scale = weight.abs().amax(1, keepdim=True) / 448
            parts = {"weight": (weight / scale).to(torch.float8_e4m3fn), "weight_scale": scale}
            return parts, parts["weight"].float() * scale
        case "bitsandbytes":
            nested = bool(settings.get("bnb_4bit_use_double_quant"))
            return bnb_int8(weight) if settings.get("load_in_8bit") else bnb_4bit(weight, nested)
        case method:
            layer = Layer(weight.shape[1], weight.shape[0], 4, 32, seed, act_order=method == "gptq")
            layer.scales = (layer.scales.float() * 4).half()
            return layer.gptq(True) if method == "gptq" else layer.awq(), layer.weight.float()


def write(directory: Path, model: Any, settings: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Save `model` with the linears of its layers quantised as `settings` say; returns a plain checkpoint's tensors."""
    model.save_pretrained(directory)
    plain = load_file(directory / "model.safetensors")
    state = dict(plain)
    turned = {name for name, module in model.named_modules() if type(module).__name__ == "Conv1D"}
    turned |= {name.removeprefix("transformer.") for name in turned}
    for i, name in enumerate(sorted(plain)):
        stem = name.removesuffix(".weight")
        if plain[name].ndim != 2 or not ("layers." in name or "h." in name) or stem.endswith("gate"):
            continue
        weight = state.pop(name)
        parts, values = quantise(weight.t() if stem in turned else weight, settings, i)
        state.update({f"{stem}.{part}": tensor.contiguous() for part, tensor in parts.items()})
        plain[name] = values.t() if stem in turned else values
    save_file(state, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    return plain


def plain_model(directory: Path, model: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """The same kind of model with `tensors`, through an ordinary checkpoint."""
    directory.mkdir()
    save_file({name: t.contiguous() for name, t in tensors.items()}, directory / "model.safetensors", {"format": "pt"})
    model.config.save_pretrained(directory)
    return type(model).from_pretrained(directory, dtype=torch.float32).eval()


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
FBGEMM = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}
INT8 = {"quant_method": "bitsandbytes", "load_in_8bit": True}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
NESTED = {**NF4, "bnb_4bit_use_double_quant": True}
METHODS = {"gptq": GPTQ, "awq": AWQ, "fbgemm": FBGEMM, "bnb-int8": INT8, "bnb-nf4": NF4, "bnb-nested": NESTED}


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen3"])
@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_becomes_plain_linears_of_its_values(tmp_path: Path, architecture: str, method: str) -> None:
    original = tiny_model(architecture)
    tensors = write(tmp_path, original, METHODS[method])
    wanted = plain_model(tmp_path / "plain", original, tensors)
    model = load_model(ModelSpec(tier=0, model=str(tmp_path)))
    state, before = model.state_dict(), original.state_dict()
    assert state.keys() == before.keys()
    assert all(torch.equal(state[name], weight) for name, weight in wanted.state_dict().items())
    assert sum(not torch.equal(state[name], before[name]) for name in state) >= 12, "something was quantised"
    assert type(model) is type(original)
    assert {type(module) for module in model.modules()} == {type(module) for module in original.modules()}


def test_quantised_experts_are_merged_as_plain_ones_are(tmp_path: Path) -> None:
    config = MixtralConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, max_position_embeddings=64,
    )
    original = MixtralForCausalLM(config)
    tensors = write(tmp_path, original, GPTQ)
    assert sum(".experts." in name for name in tensors) == 24
    wanted = plain_model(tmp_path / "plain", original, tensors).state_dict()
    state = load_model(ModelSpec(tier=0, model=str(tmp_path))).state_dict()
    assert state.keys() == wanted.keys() and all(torch.equal(state[name], wanted[name]) for name in wanted)


@pytest.mark.exactness
@pytest.mark.parametrize("method", METHODS)
def test_greedy_ids_are_those_of_the_values_in_plain_transformers(tmp_path: Path, method: str) -> None:
    tensors = write(tmp_path, tiny_model("llama"), METHODS[method])
    law = plain_model(tmp_path / "plain", tiny_model("llama"), tensors)
    ids = engine_ids(load_model(tiny_spec(model=str(tmp_path))), PROMPTS, 16)
    assert num_distinct(ids) > 15 and count_near_ties(law, PROMPTS, ids, 1e-3) <= 1


@pytest.mark.exactness
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_greedy_ids_are_those_of_transformers_over_gptqmodel(tmp_path: Path, method: str) -> None:
    """Its CPU kernels round to 16 bits, so near ties are wider."""
    for package in ("gptqmodel", "optimum"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    write(tmp_path, tiny_model("llama"), METHODS[method])
    law = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, device_map={"": "cpu"})
    ids = engine_ids(load_model(tiny_spec(model=str(tmp_path))), PROMPTS, 16)
    assert num_distinct(ids) > 15 and count_near_ties(law, PROMPTS, ids, 0.1) <= 3


def test_settings_beside_the_configuration_are_found(tmp_path: Path) -> None:
    """Older quantisers left config.json alone."""
    wanted = write(tmp_path, tiny_model("llama"), GPTQ)
    config = json.loads((tmp_path / "config.json").read_text())
    settings = config.pop("quantization_config")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelNotFound, match=r"lacks 21 of its weights .*stored in a way"):
        load_model(ModelSpec(tier=0, model=str(tmp_path)))
    (tmp_path / "quantize_config.json").write_text(json.dumps({k: settings[k] for k in ("bits", "group_size")}))
    (tmp_path / "model.safetensors").rename(tmp_path / "gptq_model-4bit-32g.safetensors")
    state = load_model(ModelSpec(tier=0, model=str(tmp_path))).state_dict()
    assert all(torch.equal(state[name], weight) for name, weight in wanted.items())


def test_shards_are_read_as_their_index_lists_them(tmp_path: Path) -> None:
    wanted = write(tmp_path, tiny_model("llama"), AWQ)
    state = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(state)
    weight_map = {name: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({name: state[name] for name in names if weight_map[name] == file}, tmp_path / file, {"format": "pt"})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    loaded = load_model(ModelSpec(tier=0, model=str(tmp_path))).state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in wanted.items())
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(b"cut off")
    with pytest.raises(ModelNotFound, match="cannot read model-00002"):
        load_model(ModelSpec(tier=0, model=str(tmp_path)))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format marlin is made for a GPU kernel"),
        ({**AWQ, "version": "gemv"}, "AWQ version gemv with 4 bits"),
        ({**AWQ, "bits": 3}, "AWQ version gemm with 3 bits"),
        ({**GPTQ, "quant_method": "aqlm"}, "quantised with aqlm, which cannot be read here"),
        ({"bits": 4}, "an unnamed method"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_formats_that_cannot_be_read_are_refused_in_one_line(
    tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    write(tmp_path, tiny_model("llama"), {"quant_method": "awq", **settings} if "bits" not in settings else GPTQ)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    with pytest.raises(UnsupportedModel, match=reason) as refusal:
        load_model(ModelSpec(tier=0, model=str(tmp_path)))
    assert "\n" not in str(refusal.value) and str(tmp_path) in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda state, stem: state.pop(f"{stem}.scales"), "q_proj has no scales"),
        (lambda state, stem: state.update({f"{stem}.scales": torch.ones(1, 64).half()}), "q_proj: the shapes of"),
        (lambda state, stem: state[f"{stem}.g_idx"].fill_(7), "q_proj: the shapes of"),
    ],
)
def test_a_damaged_layer_is_named(tmp_path: Path, change: Any, reason: str) -> None:
    write(tmp_path, tiny_model("llama"), GPTQ)
    state = load_file(tmp_path / "model.safetensors")
    change(state, "model.layers.1.self_attn.q_proj")
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelNotFound, match=reason) as refusal:
        load_model(ModelSpec(tier=0, model=str(tmp_path)))
    assert "\n" not in str(refusal.value) and "download" in str(refusal.value)


def test_activations_that_awq_scaled_are_refused(tmp_path: Path) -> None:
    write(tmp_path, tiny_model("llama"), AWQ)
    state = load_file(tmp_path / "model.safetensors")
    save_file({**state, "model.layers.0.mlp.act.scales": torch.ones(96)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match="scales activations"):
        load_model(ModelSpec(tier=0, model=str(tmp_path)))


def test_pickled_quantised_weights_are_refused(tmp_path: Path) -> None:
    write(tmp_path, tiny_model("llama"), GPTQ)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="has no weights"):
        load_model(ModelSpec(tier=0, model=str(tmp_path)))
    (tmp_path / "gptq_model.pt").touch()
    with pytest.raises(UnsupportedModel, match="save it again as safetensors"):
        load_model(ModelSpec(tier=0, model=str(tmp_path)))
