"""A small service behind mutual TLS, with tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from cluster.cli import local
from cluster.cli.serve import with_ports
from cluster.config import Config, load_config
from cluster.edge.access import Access
from cluster.ingress.tokens import new_token
from tests.certificates import Authority, Pair

WAIT_S = 60.0


@dataclass
class Secured:
    """A running service, and what its clients have."""

    config: Config
    access: Access  # may do everything
    authority: Authority
    mine: Pair  # the client's certificate
    slow: str  # token of one request at once
    vocab_size: int = 260

    @property
    def anonymous(self) -> Access:
        """With a certificate, without a token."""
        return replace(self.access, token=None)


@contextmanager
def secured_service(folder: Path, model: Path) -> Iterator[Secured]:
    """One target, which also drafts from its own text."""
    authority = Authority(folder)
    service, mine = authority.signed("service"), authority.signed("mine")
    (token, line), (slow, slow_line) = new_token("alice"), new_token("slow")
    (folder / "tokens").write_text(f"{line}\n{slow_line} max_concurrent=1\n")
    tls = {"cert": str(service.cert), "key": str(service.key), "client_ca": str(authority.cert)}
    config = with_ports(load_config({
        "tiers": [
            {"name": "draft", "drafter": {"kind": "ngram"}, "inline": True, "page_tokens": 16, "kv_tokens": 8192},
            {"name": "target", "model": str(model), "page_tokens": 16, "kv_tokens": 8192},
        ],
        "auth": {"tokens_file": str(folder / "tokens")},
        "sampling": {"max_tokens": 8},
        "limits": {"max_prompt_tokens": 200, "max_tokens": 256},
        "server": {"tls": tls, "max_message_bytes": 65536},
    }, environ={}), *local.free_ports(2))  # fmt: skip
    with local.running(config):
        yield Secured(config, Access(
            f"localhost:{config.server.grpc_port}", True, authority.cert.read_bytes(), mine.cert.read_bytes(),
            mine.key.read_bytes(), token,
        ), authority, mine, slow)  # fmt: skip
