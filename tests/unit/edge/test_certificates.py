"""Every mistake with certificates is one line before anything starts."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from cluster.config import ConfigError, load_config
from cluster.config_tls import TlsConfig
from cluster.edge.certificates import BadCertificate, check_authority, check_pair
from tests.certificates import Authority, Pair

NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_a_fresh_pair_and_its_authority_are_good(authority: Authority) -> None:
    pair = authority.signed("service")
    check_pair(pair.cert, pair.key, NOW)
    check_authority(authority.cert, NOW)
    TlsConfig(cert=str(pair.cert), key=str(pair.key), client_ca=str(authority.cert)).check_files()


@pytest.mark.parametrize(("fault", "part"), [
    ("missing", "cannot be read (No such file"), ("folder", "cannot be read (Is a directory"),
    ("empty", "holds no certificate"), ("key as certificate", "holds no certificate"),
    ("expired", "the certificate expired on"), ("future", "is valid from"),
    ("other key", "does not belong to"), ("passphrase", "has a passphrase"), ("no key", "is no private key"),
])  # fmt: skip
def test_each_fault_of_a_pair_is_named(authority: Authority, tmp_path: Path, fault: str, part: str) -> None:
    good, other = authority.signed("service"), authority.signed("other")
    (tmp_path / "empty").write_text("")
    pair = {
        "missing": Pair(tmp_path / "none", good.key), "folder": Pair(tmp_path, good.key),
        "empty": Pair(tmp_path / "empty", good.key), "key as certificate": Pair(good.key, good.key),
        "expired": authority.signed("old", begins_days=-9, ends_days=-1),
        "future": authority.signed("new", begins_days=2), "other key": Pair(good.cert, other.key),
        "passphrase": authority.signed("closed", passphrase=b"x"), "no key": Pair(good.cert, good.cert),
    }[fault]
    with pytest.raises(BadCertificate) as bad:
        check_pair(pair.cert, pair.key, NOW)
    assert part in str(bad.value)
    with pytest.raises(ConfigError) as refused:
        TlsConfig(cert=str(pair.cert), key=str(pair.key)).check_files()
    assert len(refused.value.lines) == 1
    assert refused.value.lines[0].startswith("server.tls: ")


def test_a_client_authority_must_be_able_to_sign_and_be_valid(authority: Authority) -> None:
    with pytest.raises(BadCertificate, match="may not sign others"):
        check_authority(authority.signed("leaf").cert, NOW)
    with pytest.raises(BadCertificate, match="expired"):
        check_authority(authority.cert, NOW + datetime.timedelta(days=400))


def test_settings_need_certificate_and_key() -> None:
    target = {"tiers": [{"name": "target", "model": "builtin:smollm2"}]}
    with pytest.raises(ConfigError, match=r"server\.tls\.key: is required"):
        load_config({**target, "server": {"tls": {"cert": "x"}}}, environ={})
