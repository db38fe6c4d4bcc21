"""Block verification against token-wise verification on the real pair, at temperature 1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from actors.build import build_runner
from actors.loading.tokenizer import eos_ids, load_tokenizer
from actors.messages import Ids
from cluster.bench.blocks import BlockSettings, compare
from cluster.bench.ladder.bench import REAL, LadderBench, LadderFailed
from cluster.bench.ladder.configs import REAL_PAIR
from cluster.bench.stats import Spread
from cluster.config import load_config
from cluster.ingress.tokenizing import TextCodec

KV_TOKENS = 1024


def blocks(bench: LadderBench) -> None:
    """`block_vs_token_wise`: mean accepted tokens, the same drafts judged by both rules."""
    settings = bench.settings
    specs = [
        replace(spec, tensor_parallel_size=1, kv_tokens=KV_TOKENS, num_threads=None)
        for spec in load_config(REAL_PAIR, environ={}).model_specs()
    ]
    tokenizer = load_tokenizer(specs[-1].model)
    codec = TextCodec(tokenizer)
    asked = bench.prompts(settings.block_prompts)
    prompts: list[Ids] = [np.array(codec.encode_chat([("user", prompt.text)]), np.int32) for prompt in asked]
    bench.watcher.section("blocks against single tokens", settings.block_prompts * settings.block_rounds)
    draft, target = (build_runner(spec) for spec in specs)
    try:
        found = compare(target, draft, prompts, BlockSettings(
            rounds_per_prompt=settings.block_rounds, page_tokens=specs[-1].page_tokens, kv_tokens=KV_TOKENS,
            eos_ids=tuple(eos_ids(tokenizer, None)),
        ), bench.watcher.run_done)
    except ValueError as error:
        raise LadderFailed(str(error)) from error
    low, high = found.ratio - found.ratio_error, found.ratio + found.ratio_error
    bench.add("block_vs_token_wise", found.ratio, REAL, Spread(found.ratio, low, high, found.num_rounds))
    bench.findings.details["blocks"] = found.as_json()
