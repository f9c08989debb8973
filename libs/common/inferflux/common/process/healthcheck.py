"""`python -m inferflux.common.process.healthcheck`: exit 0 when the process of this container is ready.

Asks /readyz of INFERFLUX_METRICS_LISTEN over loopback. Container images have no curl; this needs only
the standard library, and starts fast.
"""

from __future__ import annotations

import http.client
import os
import sys

_TIMEOUT_S = 2.0


def check(metrics_listen: str) -> str:
    """Ask the process for its readiness: a line that says what is wrong; empty when ready."""
    port = metrics_listen.rpartition(":")[2]
    if not port.isdigit() or int(port) == 0:
        return f"INFERFLUX_METRICS_LISTEN: {metrics_listen!r} does not say a port"
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        body = answer.read().decode("utf-8", "replace").strip()
    except (OSError, http.client.HTTPException) as error:
        return f"no answer from port {port}: {error}"
    finally:
        connection.close()
    return "" if answer.status == http.client.OK else body


def main() -> None:
    problem = check(os.environ.get("INFERFLUX_METRICS_LISTEN", ""))
    if problem:
        sys.stderr.write(f"{problem}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
