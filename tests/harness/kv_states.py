"""KV states for tests of what keeps them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferflux.worker.engine.kv.envelope import Envelope, Identity, blank

IDENTITY = Identity("m", "0.3.36", 1, 1, flash_attention=True, rope="10000")


def state_of(
    tokens: Sequence[int], *, n_bytes: int = 1000, scope: str = "s", identity: Identity = IDENTITY
) -> Envelope:
    """A state of these tokens whose payload tells whose it is."""
    made = blank(identity, scope, np.array(tokens, np.int32), n_bytes)
    made.payload[:] = payload_of(tokens, n_bytes)
    return made


def payload_of(tokens: Sequence[int], n_bytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(list(tokens)).integers(0, 256, n_bytes, np.uint8)


def is_whole(envelope: Envelope) -> bool:
    """Whether the payload is that of its tokens."""
    payload = envelope.payload
    return np.array_equal(payload, payload_of(envelope.header.tokens.tolist(), payload.shape[0]))
