"""Certificates as `inferctl admin certs` makes them, and as an attacker has them."""

from __future__ import annotations

import shutil
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from inferflux.cli.stack.cert_files import ca_file, files_of
from inferflux.cli.stack.certificates import write_certificates
from inferflux.common.process.tls import TlsFiles


@dataclass(frozen=True)
class Certificates:
    """A folder with a CA and certificates."""

    directory: Path

    @classmethod
    def made(cls, directory: Path, *, days: int = 1) -> Certificates:
        write_certificates(directory, days=days)
        return cls(directory)

    @property
    def ca(self) -> Path:
        return ca_file(self.directory)

    def server(self, name: str = "gateway", *, is_mutual: bool = False) -> TlsFiles:
        """Of a server."""
        return TlsFiles(*files_of(self.directory, name), self.ca if is_mutual else None)

    def client(self, name: str = "") -> TlsFiles:
        """Of a client that trusts this CA, and shows a certificate if it has a name."""
        cert, key = files_of(self.directory, name) if name else (None, None)
        return TlsFiles(cert, key, self.ca)

    def renew(self) -> None:
        """New certificates of the same CA."""
        write_certificates(self.directory, days=1)

    def replace_by(self, other: Certificates) -> None:
        """Those of another folder in place of these, one file after the other."""
        for path in sorted(other.directory.iterdir()):
            shutil.copyfile(path, self.directory / f"{path.name}.new")
            (self.directory / f"{path.name}.new").replace(self.directory / path.name)

    def serial(self, name: str) -> int:
        return x509.load_pem_x509_certificate(files_of(self.directory, name)[0].read_bytes()).serial_number


def serial_shown(port: int, files: TlsFiles) -> int:
    """The serial number of the certificate that a server shows in a new handshake."""
    context = files.client_context()
    with (
        socket.create_connection(("127.0.0.1", port), 5) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
    ):
        shown = encrypted.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def try_handshake(port: int, files: TlsFiles, *, highest: ssl.TLSVersion | None = None) -> None:
    """A handshake, and a first byte, which is when a server's refusal of a certificate is seen.

    Raises:
        ssl.SSLError, ConnectionError: it failed.
    """
    context = files.client_context()
    if highest is not None:
        context.set_ciphers("DEFAULT:@SECLEVEL=0")  # else this end would not speak old versions either
        context.minimum_version, context.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, highest
    with (
        socket.create_connection(("127.0.0.1", port), 5) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
    ):
        encrypted.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        if not encrypted.recv(1):
            raise ConnectionError("closed without an answer")
