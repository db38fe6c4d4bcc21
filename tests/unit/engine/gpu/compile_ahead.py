"""Compiles the kernels to machine code for devices that are not here: `python -m …compile_ahead` prints JSON lines.

A process of its own: Triton decides between compiler and interpreter when kernels are imported.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from actors.engine.gpu import kernels
from actors.engine.gpu.contract import Reduction
from actors.engine.gpu.launch import COMBINE_PLACES, ROUNDING, TritonKernels, padded
from actors.engine.gpu.ordered import linear_constants
from actors.engine.probe import Geometry

POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
ARCHITECTURES = (80, 90)  # A100, H100

# geometry, query dtype, int8 store, sliding window, rows of the step, words of tree mask, splits, reduction
VARIANTS = [
    (Geometry(32, 8, 128), torch.bfloat16, False, False, 8, 0, 8, Reduction.FIXED),  # llama-8b, decode
    (Geometry(32, 8, 128), torch.bfloat16, False, False, 512, 0, 1, Reduction.FIXED),  # and prefill
    (Geometry(32, 8, 128), torch.bfloat16, False, False, 8, 0, 8, Reduction.FAST),
    (Geometry(32, 8, 128), torch.bfloat16, False, False, 512, 0, 1, Reduction.FAST),
    (Geometry(32, 8, 128), torch.bfloat16, False, False, 64, 2, 4, Reduction.FAST),  # a tree of 64 rows
    (Geometry(32, 8, 128), torch.bfloat16, True, False, 8, 0, 8, Reduction.FIXED),
    (Geometry(32, 8, 64), torch.bfloat16, False, False, 8, 0, 8, Reduction.FIXED),  # llama-1b
    (Geometry(32, 32, 96), torch.float16, False, True, 8, 0, 8, Reduction.FAST),
    (Geometry(4, 1, 256), torch.bfloat16, False, True, 64, 0, 1, Reduction.FIXED),  # gemma3
    (Geometry(71, 1, 64), torch.bfloat16, False, False, 8, 0, 8, Reduction.FIXED),  # falcon: one KV head
    (Geometry(9, 3, 64), torch.float32, False, False, 8, 0, 1, Reduction.FIXED),  # smollm2 in fp32
]


def main() -> None:
    """One line per kernel, variant and architecture."""
    for architecture in ARCHITECTURES:
        for name, kernel, constants, types, options in kernels_to_compile():
            signature = {n: "constexpr" if n in constants else types(n) for n in kernel.arg_names}
            # What Triton finds out at a launch: allocations are aligned, rows are multiples of 16 numbers.
            aligned = {
                (i,): [["tt.divisibility", 16]]
                for i, n in enumerate(kernel.arg_names)
                if signature[n].startswith("*") or n.endswith("stride")
            }
            source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
            compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
            print(
                json.dumps(
                    {
                        "name": name, "architecture": architecture, "shared_bytes": compiled.metadata.shared,
                        "code_bytes": len(compiled.asm["cubin"]), **registers(compiled.asm["ptx"]),
                        "tensor_cores": len(re.findall(r"mma\.sync|wgmma\.mma", compiled.asm["ptx"])),
                    }
                )
            )


def kernels_to_compile() -> Iterator[tuple[str, Any, dict[str, Any], Any, dict[str, Any]]]:
    """Name, kernel, constants, type of each argument, options."""
    for geometry, dtype, int8, window, num_rows, words, splits, reduction in VARIANTS:
        chosen = TritonKernels([geometry], 64, reduction, num_multiprocessors=132)
        constants, options = chosen.attend_constants(geometry, dtype, int8, window, num_rows, words, splits)
        name = f"{geometry} {dtype} int8={int8} window={window} rows={num_rows} words={words} {reduction.name}"

        def types(argument: str, dtype: torch.dtype = dtype, int8: bool = int8) -> str:
            match argument:
                case "scale":
                    return "fp32"
                case "window" | "table_width" | "num_places" | "num_splits":
                    return "i32"
                case "keys" | "values":
                    return "*i8" if int8 else POINTERS[dtype]
                case "out" | "queries" | "new_keys" | "new_values":
                    return POINTERS[dtype]
                case "part_acc" | "part_state" | "key_scales" | "value_scales":
                    return "*fp32"
            return "i32" if argument.endswith("stride") else "*i32"

        yield f"attend {name}", kernels.attend_kernel, constants, types, options
        dims = {"HEAD_DIM": geometry.head_dim, "DIM_PAD": padded(geometry.head_dim)}
        yield (
            f"combine {name}", kernels.combine_kernel, {**dims, "BLOCK": COMBINE_PLACES}, types,
            {"num_warps": 4, **ROUNDING},
        )
        written = {**dims, "NUM_KV_HEADS": geometry.num_kv_heads, "PAGE": 64, "INT8": int8}
        yield f"write {name}", kernels.write_kernel, written, types, {"num_warps": 1}
    for dtype in (torch.bfloat16, torch.float32):

        def ordered(argument: str, dtype: torch.dtype = dtype) -> str:
            if argument == "divisor":
                return "fp32"
            return POINTERS[dtype] if argument in ("out", "inputs", "weight", "bias") else "i32"

        tiles = {**linear_constants(dtype), "HAS_BIAS": True, "DOT": kernels.DTYPES[dtype]}
        yield f"linear {dtype}", kernels.linear_kernel, tiles, ordered, {"num_warps": 4, "num_stages": 3}
        yield f"row_sum {dtype}", kernels.row_sum_kernel, {"BLOCK": 4096}, ordered, {"num_warps": 4}


def registers(ptx: str) -> dict[str, int]:
    """Registers of a thread, and bytes it keeps in memory for want of more."""
    target = re.search(r"\.target (\w+)", ptx)
    assert target is not None
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [triton.knobs.nvidia.ptxas.path, "-v", f"-arch={target[1]}", file.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    used, spilled = re.search(r"Used (\d+) registers", said), re.search(r"(\d+) bytes spill stores", said)
    assert used is not None and spilled is not None
    return {"registers": int(used[1]), "spilled_bytes": int(spilled[1])}


if __name__ == "__main__":
    main()
