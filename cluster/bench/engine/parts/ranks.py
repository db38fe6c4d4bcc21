"""Two tensor-parallel ranks of one thread each against one process of two threads."""

from __future__ import annotations

import os
from dataclasses import replace

from cluster.bench.engine.bench import Bench
from cluster.bench.engine.decode import slices
from cluster.bench.engine.rank_processes import RankProcesses
from cluster.bench.stats import paired_ratio, spread

BATCH = 5
PROMPT_TOKENS = 32  # of each sequence of the batch


def ranks(bench: Bench) -> None:
    """Two tensor-parallel ranks of one thread against one process of two, in processes of their own."""
    settings, findings = bench.settings, bench.findings
    if settings.target.device != "cpu" or (os.cpu_count() or 1) < 2:
        findings.skip("tp2_vs_tp1", "needs the CPU and at least two cores")
        return
    target = bench.kind(settings.target_kind.weights) or settings.target_kind
    spec = bench.models.spec("target", target)
    one = replace(spec, tensor_parallel_size=1, num_threads=2)
    two = replace(spec, tensor_parallel_size=2, num_threads=1)
    prompt = list(bench.prompts[:1])
    together = slices(bench.text_ids, BATCH, PROMPT_TOKENS)
    bench.watcher.section("starting ranks", 2)
    with RankProcesses(one) as single:
        bench.watcher.run_done()
        with RankProcesses(two) as pair:
            bench.watcher.run_done()
            seconds = bench.run("ranks", {
                f"{name}/{len(prompts)}": (
                    lambda group=group, prompts=prompts: group.decode(  # type: ignore[misc]
                        prompts, settings.num_tokens
                    ).seconds_per_token
                )
                for name, group in (("tp1", single), ("tp2", pair))
                for prompts in (prompt, together)
            })
    findings.details["ranks_tokens_per_s"] = {
        name: spread([1 / value for value in values]).as_json(2) for name, values in seconds.items()
    }
    findings.add("tp2_vs_tp1", paired_ratio(seconds["tp1/1"], seconds["tp2/1"]))
    rows = len(together)
    findings.add(f"tp2_vs_tp1_{rows}_rows", paired_ratio(seconds[f"tp1/{rows}"], seconds[f"tp2/{rows}"]))
