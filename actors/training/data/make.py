"""A corpus from settings: load the target, let it write, until there is enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from actors.loading.tokenizer import fingerprint, load_tokenizer
from actors.training.data.engine import open_writer, writing_spec
from actors.training.data.files import read_prompts
from actors.training.data.recipe import Recipe
from actors.training.data.sample import Progress, Sampler
from actors.training.data.shards import Description, write_description
from actors.training.data.turns import Turns


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """What `outrider train data` is told."""

    target: str
    directory: Path
    num_tokens: int
    recipe: Recipe = field(default_factory=Recipe)
    prompts: tuple[Path, ...] = ()
    only_prompts: bool = False
    weights: str = "int8"
    dtype: str = "float32"
    device: str = "cpu"
    num_threads: int | None = None
    num_parallel: int = 0  # 0: 24 on a CPU, 192 on a GPU
    max_context_tokens: int = 1536


def sample(
    settings: SamplingSettings, on_progress: Callable[[Progress], None], stop: Callable[[], bool] = lambda: False
) -> Progress:
    """Fill the directory. Raises `BadData`, `ModelNotFound`, `UnsupportedModel`, `ValueError`."""
    prompts = read_prompts(settings.prompts) if settings.prompts else []
    tokenizer = load_tokenizer(settings.target)
    write_description(settings.directory, Description(
        settings.target, fingerprint(tokenizer), len(tokenizer), settings.recipe.to_json(), settings.weights,
        tuple(path.name for path in settings.prompts),
    ))  # fmt: skip
    spec = writing_spec(
        settings.target, settings.weights, settings.dtype, settings.device, settings.num_threads,
        settings.num_parallel or (24 if settings.device == "cpu" else 192), settings.max_context_tokens,
    )
    sampler = Sampler(
        open_writer(spec), Turns(tokenizer), settings.recipe, settings.directory, prompts, settings.only_prompts
    )
    on_progress(sampler.progress)
    return sampler.run(settings.num_tokens, on_progress, stop)
