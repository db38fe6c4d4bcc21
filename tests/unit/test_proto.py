"""The committed stubs and the public contract's conventions."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor

from cluster.rpc import outrider_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "proto/outrider/v1/outrider.proto"
STUBS = ("outrider_pb2.py", "outrider_pb2.pyi", "outrider_pb2_grpc.py")


def protoc(out: str) -> list[str]:
    return [
        "-m", "grpc_tools.protoc", "-I", "cluster/rpc=proto/outrider/v1",
        f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}", SOURCE,
    ]


def test_committed_stubs_are_what_protoc_makes_of_the_sources(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    done = subprocess.run(
        [sys.executable, *protoc(str(tmp_path))],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )
    assert done.returncode == 0, done.stderr
    made = tmp_path / "cluster" / "rpc"
    assert sorted(path.name for path in made.iterdir()) == sorted(STUBS)
    stale = [name for name in STUBS if (made / name).read_text() != (ROOT / "cluster/rpc" / name).read_text()]
    assert not stale, f"stale stubs {stale}; run at the repository root: python {' '.join(protoc('.'))}"


def test_every_element_of_the_contract_has_a_comment() -> None:
    previous = ""
    for line in (ROOT / SOURCE).read_text().splitlines():
        code = line.strip()
        declares = code.endswith((";", "{", "{}")) and not code.startswith(("//", "syntax", "package"))
        if declares:
            assert previous.startswith("//"), f"no comment above: {code}"
        previous = code


def test_every_enum_starts_with_unspecified() -> None:
    for enum in pb.DESCRIPTOR.enum_types_by_name.values():
        assert enum.values_by_number[0].name.endswith("_UNSPECIFIED")


def test_every_duration_and_float_names_its_unit_or_has_none() -> None:
    durations = {
        field.name
        for message in pb.DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
        if field.type == FieldDescriptor.TYPE_DOUBLE
    }
    assert all(name.endswith("_s") or name == "mean_committed_tokens" for name in durations)


def test_service_has_the_three_calls_and_only_one_streams() -> None:
    methods = pb.DESCRIPTOR.services_by_name["Outrider"].methods
    assert {m.name: m.server_streaming for m in methods} == {
        "Generate": False, "GenerateStream": True, "GetModelInfo": False,
    }
