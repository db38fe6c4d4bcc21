"""The Ray that these tests share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial

import pytest

from cluster.cli import head


@pytest.fixture(scope="package")
def ray_env() -> Iterator[None]:
    """A local Ray with four logical CPUs and a temp dir of its own; down and gone after the last test in here.

    Not of the session: end-to-end tests that come later start a Ray of their own in the same process.
    """
    import ray

    # Not pytest's tmp dir: Ray's socket paths have a limit of about 100 characters.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as temp_dir:
        init = partial(
            ray.init, address="local", num_cpus=4, include_dashboard=False, _temp_dir=temp_dir,
            _node_ip_address="127.0.0.1", log_to_driver=False, object_store_memory=200_000_000,
            namespace="outrider-tests",
        )  # fmt: skip
        head.start(init, ray.shutdown, temp_dir)
        yield
        ray.shutdown()
