"""`inferctl admin certs`: certificates for TLS between processes."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from inferflux.cli.reach.errors import CommandError
from inferflux.cli.stack.cert_files import NAMES, ca_file

# Names, with * for the first label, and addresses: the rest is what no one can connect to.
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_.:-]+")


def certs(
    directory: Annotated[Path, typer.Argument(help="Where they go; made if it is not there.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            help="A further name or address that servers are reached by; several times. Each call needs all.",
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long certificates are valid.")] = 90,
) -> None:
    """Make a development CA, and a certificate of it for every process. Again: the CA stays."""
    from inferflux.cli.stack.certificates import LOCAL, write_certificates

    hosts = host or []
    for name in hosts:
        if _HOST.fullmatch(name) is None:
            raise CommandError(f"{name!r} is no name or address of a host")
    write_certificates(directory, hosts=hosts, days=days)
    sys.stdout.write(
        f"{ca_file(directory)}: the CA; with it NAME.pem and NAME.key for {', '.join(NAMES)},\n"
        f"each for {days} days and as NAME, {', '.join([*LOCAL, *hosts])}\n"
    )
