"""Stubs generated from `proto/outrider/v1`, nothing else; never edited by hand.

Regenerate at the repository root, with the pinned grpcio-tools:

    python -m grpc_tools.protoc -I cluster/rpc=proto/outrider/v1 \
        --python_out=. --pyi_out=. --grpc_python_out=. proto/outrider/v1/outrider.proto

`tests/unit/test_proto.py` fails when they are stale. The sources' folder `proto/` is not importable on
purpose: that name belongs to proto-plus.
"""
