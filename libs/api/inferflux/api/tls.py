"""TLS between a client and a gateway."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from .errors import InvalidArgument

TLS_CA = "INFERFLUX_TLS_CA"
TLS_CERT = "INFERFLUX_TLS_CERT"
TLS_KEY = "INFERFLUX_TLS_KEY"
# In place of a file: the CAs that everyone trusts.
PUBLIC = "public"


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files.

    Attributes:
        ca: of the CA of the gateway's certificate, or `public`; empty: plain text.
        cert: the client's own, for gateways that ask for one; empty: none.
        key: of `cert`.
    """

    ca: str | Path
    cert: str | Path = ""
    key: str | Path = ""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Tls:
        """TLS settings from INFERFLUX_TLS_CA, _CERT and _KEY; plain text without the first."""
        return cls(env.get(TLS_CA, ""), env.get(TLS_CERT, ""), env.get(TLS_KEY, ""))

    @property
    def is_on(self) -> bool:
        return bool(self.ca)

    def context(self) -> ssl.SSLContext:
        """SSL context for NATS and other protocols than gRPC.

        Raises:
            InvalidArgument: a file cannot be used.
        """
        try:
            context = ssl.create_default_context(cafile=None if str(self.ca) == PUBLIC else self.ca)
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"cannot use {self.ca}, {self.cert}: {error}", field="tls") from None
        return context

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Credentials for a channel; None for plain text.

        Raises:
            InvalidArgument: a file cannot be read, `ca` holds none, or there is a certificate without a key.
        """
        if not self.is_on:
            return None
        if bool(self.cert) != bool(self.key):
            raise InvalidArgument(f"{TLS_CERT} and {TLS_KEY} go together", field="tls")
        roots = None if str(self.ca) == PUBLIC else _read_ca(self.ca)
        pair = (_read(self.key), _read(self.cert)) if self.cert else (None, None)
        return grpc.ssl_channel_credentials(roots, *pair)


PLAIN_TEXT = Tls("")


def _read_ca(path: str | Path) -> bytes:
    data = _read(path)
    try:
        ssl.create_default_context(cafile=path)
    except ssl.SSLError:  # gRPC would find no server that it trusts
        raise InvalidArgument(f"{path} holds no certificate in PEM", field="tls") from None
    return data


def _read(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}", field="tls") from None
