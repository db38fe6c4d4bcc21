"""Settings of TLS in front of the gRPC and HTTP ports."""

from __future__ import annotations

import datetime
from pathlib import Path

from pydantic import Field

from cluster.config_load import ConfigError
from cluster.config_section import Section
from cluster.edge.certificates import BadCertificate, check_authority, check_pair
from cluster.edge.haproxy import CERT, CLIENT_CA, KEY


class TlsConfig(Section):
    """Files in PEM form. `outrider serve` uses them; on a cluster its nodes name them in their environment."""

    cert: str = Field(min_length=1, description="file: the service's certificate and what it was signed with")
    key: str = Field(min_length=1, description="file: its key, without a passphrase")
    client_ca: str | None = Field(
        None, min_length=1, description="file: clients must bring a certificate that it signed; null: they need none",
    )

    def check_files(self) -> None:
        """Raises `ConfigError`: a file is missing, unreadable, expired, or does not belong to the other."""
        now, lines = datetime.datetime.now(datetime.UTC), []
        try:
            check_pair(Path(self.cert), Path(self.key), now)
        except BadCertificate as error:
            lines.append(f"server.tls: {error}")
        try:
            if self.client_ca is not None:
                check_authority(Path(self.client_ca), now)
        except BadCertificate as error:
            lines.append(f"server.tls.client_ca: {error}")
        if lines:
            raise ConfigError(lines)

    def environment(self) -> dict[str, str]:
        """What Serve's HAProxy is told, as absolute paths."""
        files = {CERT: self.cert, KEY: self.key, CLIENT_CA: self.client_ca}
        return {name: str(Path(file).absolute()) for name, file in files.items() if file is not None}
