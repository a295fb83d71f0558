"""Certificates, keys and files of them: what is refused, and that no secret is told."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from penstock.proto.errors import ConfigError, Unauthorized
from penstock.runtime.security.certificates import ServerTls
from penstock.runtime.security.credentials import Credentials, SecurityFiles, Tls
from penstock.runtime.security.signatures import AGE_S_MAX, AUTHORIZATION, DATE_TIME, Signer, claim_of, signed
from tests.support.cluster.certificates import Authority, put

SECRET = "PLANTED-s3cret"
NOW_S = 1_700_000_000


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.pem: cannot be read: No such file"):
        Tls(ca_file=tmp_path / "no.pem")


def test_what_is_no_certificate_is_named(authority: Authority, tmp_path: Path) -> None:
    pair, text = authority.issue("a"), put(tmp_path / "text", "no certificate at all")
    with pytest.raises(ConfigError, match=r"text: no certificates of authorities in PEM form"):
        Tls(ca_file=text)
    with pytest.raises(ConfigError, match=r"text: no certificate in PEM form"):
        ServerTls(cert_file=text, key_file=pair.key)
    with pytest.raises(ConfigError, match=r"text: no private key in PEM form"):
        ServerTls(cert_file=pair.cert, key_file=text)
    broken = put(tmp_path / "broken", pair.cert.read_bytes()[:200] + b"\n-----END CERTIFICATE-----\n")
    with pytest.raises(ConfigError, match=r"broken, .*a\.key: not a certificate and its key"):
        ServerTls(cert_file=broken, key_file=pair.key)


def test_a_key_that_does_not_fit_or_has_a_password_is_named(authority: Authority, tmp_path: Path) -> None:
    a, b = authority.issue("a"), authority.issue("b")
    with pytest.raises(ConfigError, match=r"b\.key: is not the key of the certificate .*a\.pem"):
        ServerTls(cert_file=a.cert, key_file=b.key)
    locked = put(
        tmp_path / "locked", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA==\n-----END ENCRYPTED PRIVATE KEY-----\n"
    )
    with pytest.raises(ConfigError, match=r"locked: the key has a password"):
        ServerTls(cert_file=a.cert, key_file=locked)
    with pytest.raises(ConfigError, match="give both, or none"):
        Tls(ca_file=authority.file, cert_file=a.cert)


def test_a_key_that_everybody_may_read_is_refused(authority: Authority) -> None:
    pair = authority.issue("a")
    pair.key.chmod(0o644)
    with pytest.raises(ConfigError, match=r"a\.key: holds a secret, and everybody may use it \(mode 0644\)"):
        ServerTls(cert_file=pair.cert, key_file=pair.key)
    pair.key.chmod(0o640)
    ServerTls(cert_file=pair.cert, key_file=pair.key)


def test_credentials_come_from_a_private_file(tmp_path: Path) -> None:
    path = put(tmp_path / "keys", f"# of the loader\naccessKey = loader\nsecretKey: {SECRET}=\n")
    read = Credentials.from_file(path)
    assert (read.access_key, read.secret_key) == ("loader", f"{SECRET}=")
    path.chmod(0o604)
    with pytest.raises(ConfigError, match=r"keys: holds a secret, and everybody may use it \(mode 0604\)"):
        Credentials.from_file(path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "one line accessKey"),
        ("accessKey = a\n", "one line accessKey"),
        (f"accessKey = a\nsecretKey = {SECRET}\nmore = {SECRET}\n", "and no other"),
        (f"accessKey = a\n{SECRET}\n", r":2: not of the form key = value"),
        (f"accessKey = a\nsecretKey = {SECRET}\nsecretKey = {SECRET}\n", r":3: the same key stands above"),
        (f"accessKey = a,b\nsecretKey = {SECRET}\n", "access key 'a,b' must be 1 to 128 letters"),
        (f"accessKey = a\nsecretKey = {SECRET}\x01\n", "must be 1 to 256 printable"),
        ("accessKey = a\nsecretKey = \n", ":2: not of the form"),
    ],
)
def test_a_wrong_file_of_credentials_is_explained_without_the_secret(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        Credentials.from_file(put(tmp_path / "keys", text))
    assert SECRET not in repr(caught.value) + str(caught.value)
    assert "keys" in str(caught.value)


def test_no_secret_is_shown(authority: Authority, tmp_path: Path) -> None:
    credentials = Credentials("loader", SECRET)
    pair = authority.issue("a")
    key = pair.key.read_text().splitlines()[2]
    shown = repr(credentials) + str(credentials) + repr(authority.tls(pair)) + repr(Signer(credentials))
    assert SECRET not in shown
    assert key not in shown
    with pytest.raises(ConfigError) as caught:
        Credentials("loader", SECRET + "\n")
    assert SECRET not in str(caught.value)


def test_the_environment_names_files(authority: Authority, tmp_path: Path) -> None:
    keys = put(tmp_path / "keys", f"accessKey = loader\nsecretKey = {SECRET}\n")
    environment = {"PENSTOCK_TLS_CA_FILE": str(authority.file), "PENSTOCK_CREDENTIALS_FILE": str(keys)}
    files = SecurityFiles.from_environment(environment)
    assert SECRET.encode() not in pickle.dumps(files)
    security = files.read()
    assert security.tls is not None
    assert security.tls.server_name is None
    assert security.credentials == Credentials("loader", SECRET)
    assert SecurityFiles.from_environment({}).read().tls is None
    with pytest.raises(ConfigError, match="tlsCaFile, or PENSTOCK_TLS_CA_FILE"):
        SecurityFiles.from_environment({"PENSTOCK_TLS_SERVER_NAME": "broker"})


def test_a_signature_proves_its_secret_and_no_other() -> None:
    metadata = signed(Credentials("loader", SECRET), NOW_S)
    assert dict(metadata)[DATE_TIME] == "20231114T221320Z"
    claim = claim_of(metadata, NOW_S)
    assert claim.access_key == "loader"
    assert claim.is_proven_by(SECRET)
    assert not claim.is_proven_by(SECRET + "x")
    assert SECRET not in repr(metadata)


def test_a_signature_is_as_rocketmqs_clients_make_it() -> None:
    """Upper case, and more behind the access key: Java and Go; the value is OpenSSL's for this key and text."""
    header = (
        "MQv2-HMAC-SHA1 Credential=AK//Rocketmq, SignedHeaders=x-mq-date-time, "
        "Signature=2ABE839E48C04EA66B4FC1D0EC91BF1812027377"
    )
    claim = claim_of([(DATE_TIME, "20231114T221320Z"), (AUTHORIZATION, header)], NOW_S)
    assert (claim.access_key, claim.is_proven_by("SK")) == ("AK", True)


@pytest.mark.parametrize("seconds", [-AGE_S_MAX - 1, AGE_S_MAX + 1])
def test_a_signature_of_another_time_is_refused(seconds: int) -> None:
    metadata = signed(Credentials("loader", SECRET), NOW_S + seconds)
    with pytest.raises(Unauthorized, match=r"more than 300 s from this server's time.*set the clocks"):
        claim_of(metadata, NOW_S)


def _header(value: str, date: str = "20231114T221320Z") -> list[tuple[str, str]]:
    return [(DATE_TIME, date), (AUTHORIZATION, value)]


GOOD = dict(signed(Credentials("loader", SECRET), NOW_S))[AUTHORIZATION]


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [(AUTHORIZATION, GOOD)],
        [(DATE_TIME, "20231114T221320Z")],
        _header(""),
        _header("Credential=,"),
        _header(GOOD[:-1]),
        _header(GOOD + "0"),
        _header(GOOD.replace("SHA1", "SHA256")),
        _header(GOOD.replace("loader", "")),
        _header(GOOD, "yesterday"),
        [(DATE_TIME, b"20231114T221320Z"), (AUTHORIZATION, GOOD)],
    ],
    ids=str,
)
def test_what_is_no_signature_is_refused(metadata: list[tuple[str, str]]) -> None:
    with pytest.raises(Unauthorized):
        claim_of(metadata, NOW_S)


def test_one_bit_off_is_no_proof() -> None:
    last = GOOD[-1]
    other = "0" if last != "0" else "1"
    assert not claim_of(_header(GOOD[:-1] + other), NOW_S).is_proven_by(SECRET)


def test_a_signature_serves_the_calls_of_its_second() -> None:
    now = [float(NOW_S)]
    signer = Signer(Credentials("loader", SECRET), lambda: now[0])
    first = signer.metadata()
    now[0] += 0.9
    assert signer.metadata() is first
    now[0] += 0.2
    assert dict(signer.metadata())[DATE_TIME] == "20231114T221321Z"
