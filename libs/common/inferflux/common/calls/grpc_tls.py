"""TLS and mutual TLS of gRPC, on both ends, from files that may be replaced while the process runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from inferflux.common.process.tls import ClientTls, Reloaded, ServerTls, TlsFiles


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """Credentials of a server: each handshake uses the files as they are then.

    Raises:
        InvalidArgument: a file cannot be used.
    """
    files = tls.files
    configurations = Reloaded(files, lambda: _server_configuration(files))
    last: Any = configurations.current()

    def changed() -> Any:
        nonlocal last
        now = configurations.current()
        if now is last:
            return None
        last = now
        return now

    return grpc.dynamic_ssl_server_credentials(
        last, changed, require_client_authentication=files.ca is not None
    )


def channel_credentials(tls: ClientTls) -> Reloaded[grpc.ChannelCredentials]:
    """Credentials of channels, each of which keeps those that it was made with.

    Raises:
        InvalidArgument: a file cannot be used.
    """
    return Reloaded(tls.files, lambda: _channel_credentials(tls.files))


def certificate_name(auth_context: Any) -> str:
    """Common name of the certificate that a caller over gRPC has shown; "" without one.

    Args:
        auth_context: of the call, which has it only of a certificate that was verified.
    """
    if auth_context.get("transport_security_type") != [b"ssl"]:
        return ""
    names: Sequence[bytes] = auth_context.get("x509_common_name") or [b""]
    return bytes(names[0]).decode("utf-8", "replace")


def _server_configuration(files: TlsFiles) -> Any:
    files.server_context()  # gRPC would notice at a handshake that key and certificate do not match
    if files.cert is None or files.key is None:
        raise ValueError("a server needs a certificate and its key")
    pair = (files.key.read_bytes(), files.cert.read_bytes())
    return grpc.ssl_server_certificate_configuration([pair], files.ca.read_bytes() if files.ca else None)


def _channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    files.client_context()  # says what is wrong with a file; gRPC does not
    read = [None if path is None else path.read_bytes() for path in (files.ca, files.key, files.cert)]
    return grpc.ssl_channel_credentials(*read)
