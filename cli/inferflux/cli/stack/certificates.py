"""A CA of one's own, and certificates of it for every process: for development and for one company's network.

Made again, the CA stays and the certificates are new: processes read them without a restart.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from inferflux.cli.reach.errors import CommandError
from inferflux.common.process.private_files import write_private

from .cert_files import NAMES, ca_file, files_of

LOCAL = ("localhost", "127.0.0.1", "::1")
_CA_DAYS = 3650
# Clocks differ.
_BEFORE = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Issuer:
    """A CA with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def write_certificates(directory: Path, *, hosts: Sequence[str] = (), days: int = 90) -> None:
    """Write a CA, unless there is one, and a new certificate for each of `NAMES`.

    Args:
        hosts: further names and addresses that servers are reached by.
        days: how long the certificates are valid.

    Raises:
        CommandError: the directory cannot be written to, or what is there is no CA.
    """
    now = datetime.now(UTC)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        issuer = _issuer(directory, now)
        for name in NAMES:
            certificate, key = _leaf(issuer, name, [name, *LOCAL, *hosts], now, days)
            cert_path, key_path = files_of(directory, name)
            # The key first: a process that looks in between has a pair that does not match, and waits.
            write_private(key_path, _key_pem(key))
            write_private(cert_path, _pem(certificate), mode=0o644)
    except OSError as error:
        raise CommandError(f"cannot write certificates into {directory}: {error}") from None


def _issuer(directory: Path, now: datetime) -> Issuer:
    path, key_path = ca_file(directory), directory / "ca.key"
    if not path.exists():
        issuer = _new_issuer(now)
        write_private(key_path, _key_pem(issuer.key))
        write_private(path, _pem(issuer.certificate), mode=0o644)
        return issuer
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
    except ValueError as error:
        raise CommandError(f"{directory} holds no CA of this command: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise CommandError(f"{key_path} is not the key of {path}")
    return Issuer(certificate, key)


def _new_issuer(now: datetime) -> Issuer:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("InferFlux development CA")
    certificate = (
        _builder(name, name, key.public_key(), now, _CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Issuer(certificate, key)


def _leaf(
    issuer: Issuer, name: str, hosts: Sequence[str], now: datetime, days: int
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key())
    certificate = (
        _builder(_name(name), issuer.certificate.subject, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(authority, critical=False)
        .sign(issuer.key, hashes.SHA256())
    )
    return certificate, key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
