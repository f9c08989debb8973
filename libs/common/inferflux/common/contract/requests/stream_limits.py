"""Limits of the JetStream streams, and their number of replicas."""

from __future__ import annotations

from dataclasses import dataclass

from .images import OBJECT_LIFE_S

# Of replicas: as many as fit the servers that there are.
AUTO = 0
# Of objects in a bucket.
CHUNK_BYTES = 128 << 10


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Every service passes the same limits; a service that starts later changes the streams to its own."""

    # Jobs that wait or run; one more is refused.
    queue_limit: int = 4096
    # The token replay buffer: what is older goes, and the oldest goes when it is full.
    tokens_max_age_s: float = 300.0
    tokens_max_bytes: int = 128 << 20
    # Images of requests: what is older goes, and none is taken when it is full.
    images_max_age_s: float = OBJECT_LIFE_S
    images_max_chunks: int = (4 << 30) // CHUNK_BYTES
    # KV state between workers, in memory: none is taken when it is full.
    kv_max_chunks: int = (256 << 20) // CHUNK_BYTES
    # Servers that keep each stream, and that of tokens. `AUTO`: three in a cluster, one without.
    replicas: int = AUTO
    tokens_replicas: int = AUTO
