"""README's examples for grpcurl and Go say what the contract knows; its Python ones run in tests/e2e/edges."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, json_format

from cluster.rpc import outrider_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SERVICE = pb.DESCRIPTOR.services_by_name["Outrider"]


def test_grpcurl_finds_the_contract_the_method_and_a_request_that_it_can_read(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    (line,) = re.findall(r"^grpcurl (?:.*\\\n)*.*$", README, re.MULTILINE)
    words = shlex.split(line.replace("\\\n", " "))
    option = {name: value for name, value in zip(words, words[1:], strict=False) if name.startswith("-")}
    made = tmp_path / "made"
    done = subprocess.run(  # grpcurl resolves paths as protoc does
        [sys.executable, "-m", "grpc_tools.protoc", "-I", option["-import-path"], f"--descriptor_set_out={made}",
         option["-proto"]], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file
    service, method = words[-1].split("/")
    assert service == f"{file.package}.{file.service[0].name}" == SERVICE.full_name
    assert method in [each.name for each in file.service[0].method]
    asked = json_format.Parse(option["-d"], pb.GenerateRequest())
    assert asked.sampling.max_tokens == 60
    assert asked.chat.messages[0].content


def test_gos_names_are_those_that_protoc_makes_of_the_contract() -> None:
    (program,) = re.findall(r"```go\n(.*?)```", README, re.DOTALL)

    def made(name: str) -> str:
        return "".join(part.capitalize() for part in name.split("_"))

    request, sampling = pb.GenerateRequest.DESCRIPTOR, pb.SamplingOptions.DESCRIPTOR
    known = {"NewOutriderClient", *(message for message in pb.DESCRIPTOR.message_types_by_name)}
    known |= {f"GenerateRequest_{made(field.name)}" for field in request.oneofs_by_name["prompt"].fields}
    assert set(re.findall(r"outrider\.(\w+)", program.split("\nconn", 1)[1])) <= known
    fields = {made(name) for name in (*request.fields_by_name, *request.oneofs_by_name, *sampling.fields_by_name)}
    assert set(re.findall(r"(\w+):(?!=) ", program.split("\nconn", 1)[1])) <= fields
    called = re.findall(r"\)\.(\w+)\(ctx", program)
    assert called == ["GenerateStream"]
    assert called[0] in SERVICE.methods_by_name
    shown = {made(name) for name in pb.GenerateChunk.DESCRIPTOR.fields_by_name}
    assert set(re.findall(r"chunk\.Get(\w+)\(", program)) <= shown
