"""The ports on which Serve answers gRPC behind its HAProxy: on one machine for that HAProxy, and for nobody else.

Serve 2.60 opens them on all interfaces, whatever host is configured, and behind them there is neither TLS nor a
client's certificate. It has no setting for that, but a function that each of its proxies and ingress replicas calls
before it opens its ports (`RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`, which is there for middleware). HAProxy comes
to the replicas of its own machine by 127.0.0.1; on a cluster those of other nodes must reach them, so there they stay
open, and a network policy keeps others away.

Serve's proxies import this module, so it imports little.
"""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)

CALLBACK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
NARROW = "cluster.edge.ports:narrow_grpc"  # its value
LOOPBACK = "127.0.0.1"
_OPENS = "add_grpc_address"  # of ray.serve._private.default_impl


def narrow_grpc() -> list[Any]:
    """From now on Serve opens the gRPC ports of this process on loopback only. Gives no middleware."""
    from ray.serve._private import default_impl

    if not hasattr(default_impl, _OPENS):  # another Serve: better wide open and told of than not serving
        logger.warning("this Ray Serve opens its gRPC ports on all interfaces: close them with a firewall")
        return []

    def open_port(server: Any, address: str) -> None:
        server.add_insecure_port(f"{LOOPBACK}:{address.rpartition(':')[2]}")

    setattr(default_impl, _OPENS, open_port)
    return []
