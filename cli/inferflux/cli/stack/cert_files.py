"""Files that `inferctl admin certs` writes."""

from __future__ import annotations

from pathlib import Path

# Each is the common name of a certificate. Containers are reached by these names too.
NAMES = ("gateway", "policy", "scheduler", "worker", "nats", "valkey", "client")


def ca_file(directory: Path) -> Path:
    """The certificate of the CA."""
    return directory / "ca.pem"


def files_of(directory: Path, name: str) -> tuple[Path, Path]:
    """Certificate and key of one of `NAMES`."""
    return directory / f"{name}.pem", directory / f"{name}.key"
