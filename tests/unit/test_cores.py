"""A tier keeps to the cores that it is given, or says why it cannot."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from actors.cores import stay_on
from cluster.config import ConfigError, load_config

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the platform has no core affinity")

SCRIPT = """
import os, threading
from actors.cores import stay_on
end = threading.Event()
before = threading.Thread(target=end.wait); before.start()
core = min(os.sched_getaffinity(0))
stay_on([core])
after = threading.Thread(target=end.wait); after.start()
print([sorted(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")] == [[core]] * 3)
end.set()
"""


def test_all_threads_stay_those_that_run_and_those_that_will() -> None:
    assert subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout == "True\n"


def test_no_cores_leave_a_process_alone() -> None:
    before = os.sched_getaffinity(0)
    stay_on(())
    assert os.sched_getaffinity(0) == before


def test_a_core_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"cores \[99999\] are not to be had here: this process may use"):
        stay_on([99999])


def test_a_core_named_twice_and_cores_of_a_guest_are_mistakes() -> None:
    config = load_config("emulated-ladder", environ={}).model_dump(mode="json")
    config["tiers"][1]["cores"] = [0, 0]
    with pytest.raises(ConfigError, match="names a core twice"):
        load_config(config, environ={})
    config["tiers"][1]["cores"] = []
    config["tiers"][0]["cores"] = [0]
    with pytest.raises(ConfigError, match=r"tiers.0.cores: an inline tier shares the process of 'medium'"):
        load_config(config, environ={})


def test_cores_reach_the_actors() -> None:
    config = load_config("smollm2", environ={}).model_dump(mode="json")
    config["tiers"][0]["cores"] = [1]
    assert [spec.cores for spec in load_config(config, environ={}).model_specs()] == [(1,), ()]
