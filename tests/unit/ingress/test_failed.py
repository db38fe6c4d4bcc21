"""What leaves the ingress must be cheap to unpickle in Serve's proxy."""

from __future__ import annotations

import pickle
import subprocess
import sys

from cluster.ingress.failed import RequestFailed


def test_unpickling_a_failure_imports_no_heavy_library() -> None:
    code = (
        "import pickle, sys; error = pickle.loads(bytes.fromhex(sys.argv[1])); "
        "print(str(error), sorted({'torch', 'transformers', 'ray', 'grpc'} & sys.modules.keys()))"
    )
    failure = pickle.dumps(RequestFailed("UNAVAILABLE: retry")).hex()
    done = subprocess.run(
        [sys.executable, "-c", code, failure], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "UNAVAILABLE: retry []"
