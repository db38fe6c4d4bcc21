"""Certificates and keys are looked at before anything starts: a mistake is one line, not a failed handshake."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key


class BadCertificate(ValueError):
    """A file cannot be used; `str(error)` is one sentence that names it."""


def check_pair(cert: Path, key: Path, now: datetime.datetime) -> None:
    """A chain that is valid now, whose first certificate belongs to the key. Raises `BadCertificate`."""
    chain = _certificates(cert)
    for each in chain:
        _check_dates(each, cert, now)
    text = _read(key)
    try:
        private = load_pem_private_key(text, password=None)
    except TypeError as error:
        raise BadCertificate(f"{key}: the key has a passphrase; give one without, for this user alone") from error
    except ValueError as error:
        raise BadCertificate(f"{key}: is no private key in PEM form") from error
    spki = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*spki) != chain[0].public_key().public_bytes(*spki):
        raise BadCertificate(f"{key}: does not belong to the first certificate in {cert}")


def check_authority(authority: Path, now: datetime.datetime) -> None:
    """Certificates that may sign others, one of them valid now. Raises `BadCertificate`."""
    found = _certificates(authority)
    for each in found:
        try:
            signs = each.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        except x509.ExtensionNotFound:
            signs = True  # version 1, as old authorities are
        if not signs:
            raise BadCertificate(f"{authority}: holds a certificate that may not sign others; give the authority's own")
    if all(_expired(each, now) for each in found):
        _check_dates(found[0], authority, now)


def _certificates(path: Path) -> list[x509.Certificate]:
    text = _read(path)
    try:
        return x509.load_pem_x509_certificates(text)
    except ValueError as error:
        raise BadCertificate(f"{path}: holds no certificate in PEM form") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadCertificate(f"{path}: cannot be read ({error.strerror})") from error


def _expired(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    return now > certificate.not_valid_after_utc


def _check_dates(certificate: x509.Certificate, path: Path, now: datetime.datetime) -> None:
    if _expired(certificate, now):
        raise BadCertificate(f"{path}: the certificate expired on {certificate.not_valid_after_utc:%Y-%m-%d}; renew it")
    if now < certificate.not_valid_before_utc:
        raise BadCertificate(f"{path}: the certificate is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} "
                             "UTC on; check this machine's clock")
