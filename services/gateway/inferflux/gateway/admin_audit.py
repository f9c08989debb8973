"""The audit line of an administrator's call that changes something."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from inferflux.common import logs
from inferflux.common.errors import InferFluxError
from inferflux.common.grpc_interceptor import caller_as, current_call

from .caller import Caller

audit = logs.get("audit")


@contextmanager
def audited(method: str, **about: object) -> Iterator[dict[str, object]]:
    """Write the line when the call ends: which key did what, and how it ended.

    Yields:
        What else the line is to have.
    """
    caller, began_s = caller_as(Caller), time.monotonic()
    more: dict[str, object] = {}
    outcome = "internal"
    try:
        yield more
        outcome = "done"
    except InferFluxError as error:
        outcome = error.reason.lower()
        raise
    except (asyncio.CancelledError, GeneratorExit):
        outcome = "left"
        raise
    finally:
        audit.info(
            "audit",
            method=method,
            tenant=caller.tenant,
            key_id=caller.key_id,
            request_id=current_call().context.request_id,
            outcome=outcome,
            duration_ms=round((time.monotonic() - began_s) * 1000, 1),
            **about,
            **more,
        )
