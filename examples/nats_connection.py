"""How the examples that read token subjects reach NATS."""

from __future__ import annotations

import os
import sys

import nats
import nats.errors
from local_stack import setting

from inferflux.api.tls import Tls
from inferflux.api.token_subjects import inbox_prefix


async def connect(client: nats.NATS) -> None:
    """Connect to the NATS of the environment, else of the local stack; ends the program if that fails."""
    url = setting("INFERFLUX_NATS_URL")
    tls = Tls.from_env(os.environ)
    options = {"tls": tls.context()} if tls.is_on else {}
    try:
        # Its user may read the replies to its own requests alone.
        await client.connect(url, inbox_prefix=inbox_prefix(url), max_reconnect_attempts=5, **options)
    except (nats.errors.Error, OSError) as error:
        sys.exit(f"NATS does not let us in: {error}")
