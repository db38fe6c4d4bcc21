"""Serve between two modules of tests."""

from __future__ import annotations

import time

import ray
from ray import serve

CONTROLLER, NAMESPACE = "SERVE_CONTROLLER_ACTOR", "serve"
WAIT_S = 60.0


def end_serve() -> None:
    """Shut Serve down and wait until its controller's name is free: who starts Serve sooner may find the dead one."""
    serve.shutdown()
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        try:
            ray.get_actor(CONTROLLER, namespace=NAMESPACE)
        except ValueError:
            return
        time.sleep(0.1)
    raise TimeoutError(f"Serve's controller has not ended within {WAIT_S:.0f} s")
