"""PEM files as they are on the disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from inferflux.cli.doctor.seen import Certificate


def look(wanted: Iterable[Certificate]) -> list[Certificate]:
    """The same certificates, each with what its files say."""
    return [_read(one) for one in wanted]


def _read(one: Certificate) -> Certificate:
    try:
        certificate = x509.load_pem_x509_certificates(one.path.read_bytes())[0]
    except OSError as error:
        return replace(one, failure=error.strerror or "it cannot be read")
    except ValueError:
        return replace(one, failure="it is not PEM")
    return replace(
        one,
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        names=_names(certificate),
        key_failure=_key_failure(one.key, certificate) if one.key is not None else "",
    )


def _key_failure(path: Path, certificate: x509.Certificate) -> str:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        return error.strerror or "it cannot be read"
    except TypeError:
        return "it is encrypted"
    except ValueError:
        return "it is not PEM"
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    is_own = key.public_key().public_bytes(*form) == certificate.public_key().public_bytes(*form)
    return "" if is_own else "it is the key of another certificate"


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    addresses = map(str, found.get_values_for_type(x509.IPAddress))
    return (*found.get_values_for_type(x509.DNSName), *addresses)
