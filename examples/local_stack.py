"""Where the examples find InferFlux: the environment, else the stack that `make up` runs on this machine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

_FIELDS = {
    "INFERFLUX_ENDPOINT": "endpoint",
    "INFERFLUX_API_KEY": "api_key",
    "INFERFLUX_NATS_URL": "tokens_url",
}


def setting(variable: str) -> str:
    """An environment variable, else what the running stack wrote down; ends the program without either."""
    if value := os.environ.get(variable):
        return value
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "inferflux"
    file = Path(os.environ.get("INFERFLUX_STATE_DIR") or state) / "stack.json"
    if not file.exists():
        sys.exit(f"set {variable}, or start InferFlux on this machine with `make up`")
    stack = json.loads(file.read_text())
    if stack.get("tls_ca"):  # a stack that speaks TLS: the clients of gateway and NATS read these variables
        folder = Path(stack["tls_ca"]).parent
        for name, of in (
            ("CA", stack["tls_ca"]),
            ("CERT", folder / "client.pem"),
            ("KEY", folder / "client.key"),
        ):
            os.environ.setdefault(f"INFERFLUX_TLS_{name}", str(of))
    return str(stack[_FIELDS[variable]])
