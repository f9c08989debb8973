"""`inferctl admin certs`: certificates for TLS between processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .cert_files import NAMES, ca_file


def certs(
    directory: Annotated[Path, typer.Argument(help="Where they go; made if it is not there.")],
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="A further name or address that servers are reached by; repeatable."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long certificates are valid.")] = 90,
) -> None:
    """Make a development CA, and a certificate of it for every process. Again: the CA stays."""
    from .certificates import write_certificates

    write_certificates(directory, hosts=host or [], days=days)
    sys.stdout.write(f"{ca_file(directory)}: the CA; with it NAME.pem and NAME.key for {', '.join(NAMES)}\n")
