"""One service for all tests of what clients meet: HTTP, the Python client, the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import _byte_tokenizer
from tests.e2e.service import Service, served
from tests.ray.test_target_group import uneven_model

MODEL = "tiny"
TEMPLATE = (
    "{% for tool in tools or [] %}<|system|>{{ tool | tojson }} as <tool_call><|endoftext|>{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Two pools of random models; the draft is the target in int8, so that it is often right."""
    path: Path = uneven_model(tmp_path_factory.mktemp("edges"), 1024)
    tokenizer = _byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    small = {"model": str(path), "kv_tokens": 8192, "num_threads": 1, "resources": {"num_cpus": 0.1}}
    settings: dict[str, object] = {
        "model_name": MODEL,
        "tiers": [{"name": "draft", "weights": "int8", **small}, {"name": "target", **small}],
        "speculation": {"draft_timeout_s": 60},
        "limits": {"max_prompt_tokens": 600, "max_tokens": 900, "max_concurrent_requests": 4, "max_queued_requests": 2},
        "sampling": {"max_tokens": 24},
    }
    with served(settings) as running:
        yield running
