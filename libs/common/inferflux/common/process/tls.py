"""TLS and mutual TLS, from files that may be replaced while the process runs.

A certificate that was renewed counts from the next handshake on: nothing is started again. Files that cannot
be used, as when the key of a new certificate is not there yet, change nothing until they can.

Servers and clients speak TLS 1.2 or newer, with Python's own choice of ciphers.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from inferflux.common.contract.errors import InvalidArgument

from . import logs

log = logs.get()

# Files are looked at again after this long, at the earliest.
_LOOK_INTERVAL_S = 1.0

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files.

    Attributes:
        cert: of this process, with the certificates that lead to its CA; None: it shows none.
        key: of `cert`.
        ca: whose certificates the other end must show; None: any public CA's where this end calls, and none
            where it is called.
        variable: the setting that `cert` is from, for messages.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    variable: str = "INFERFLUX_TLS_CERT"

    def paths(self) -> list[Path]:
        return [path for path in (self.cert, self.key, self.ca) if path is not None]

    def server_context(self) -> ssl.SSLContext:
        """SSL context of a server, which asks its clients for certificates if there is a `ca`.

        Raises:
            OSError, ssl.SSLError: a file cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self.ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.ca)
            # A session that is taken up again would show no certificate, whatever CA counts by then.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        self._load_cert(context)
        return context

    def client_context(self) -> ssl.SSLContext:
        """SSL context of a client, which checks the server's certificate and name.

        Raises:
            OSError, ssl.SSLError: a file cannot be used.
        """
        context = ssl.create_default_context(cafile=self.ca)
        self._load_cert(context)
        return context

    def _load_cert(self, context: ssl.SSLContext) -> None:
        if self.cert is not None:
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            # A key that asks for a password would ask at the terminal.
            context.load_cert_chain(self.cert, self.key, password=_no_password)


class Reloaded(Generic[_T]):
    """Object made of files, made again when they change.

    Args:
        clock: monotonic seconds.

    Raises:
        InvalidArgument: a file cannot be used; names the setting.
    """

    def __init__(
        self, files: TlsFiles, make: Callable[[], _T], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._files = files
        self._make = make
        self._clock = clock
        self._looked_s = clock()
        self._stamp = stamp_of(files.paths())
        try:
            self._made = make()
        except (OSError, ValueError) as error:
            names = ", ".join(map(str, files.paths()))
            message = f"{files.variable}: cannot use {names}: {error}"
            raise InvalidArgument(message, field=files.variable) from None

    def current(self) -> _T:
        """Object made of the files as they are now, or were a second ago."""
        now = self._clock()
        if now - self._looked_s < _LOOK_INTERVAL_S:
            return self._made
        self._looked_s = now
        stamp = stamp_of(self._files.paths())
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._made = self._make()
            except (OSError, ValueError) as error:
                log.error("changed certificates cannot be used", error=str(error), cert=str(self._files.cert))
            else:
                log.info("certificates were read again", cert=str(self._files.cert))
        return self._made


class ServerTls:
    """TLS of a server: its certificate files, loaded again when they change.

    Raises:
        InvalidArgument: a file cannot be used.
    """

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self._contexts = Reloaded(files, files.server_context)

    def context(self) -> ssl.SSLContext:
        """SSL context for asyncio; each handshake uses the files as they are then."""
        context = self.files.server_context()

        def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self._contexts.current()

        context.sni_callback = choose
        return context


class ClientTls:
    """TLS of a client: its certificate files, loaded again when they change.

    Raises:
        InvalidArgument: a file cannot be used.
    """

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self._contexts = Reloaded(files, files.client_context)

    def context(self) -> ssl.SSLContext:
        """SSL context of the files as they are now: ask for it at every connection."""
        return self._contexts.current()


def _no_password() -> str:
    raise ValueError("the key is encrypted: give it without a password")


def stamp_of(paths: Sequence[Path]) -> list[tuple[int, int, int] | None]:
    """Changes with any of the files. A file that is replaced by a link to another counts."""
    stamps: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            seen = path.stat()
        except OSError:
            stamps.append(None)
        else:
            stamps.append((seen.st_mtime_ns, seen.st_size, seen.st_ino))
    return stamps
