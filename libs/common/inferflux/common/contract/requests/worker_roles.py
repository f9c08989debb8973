"""Names of the roles that workers have (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from inferflux.v1 import scheduler_pb2

Role: TypeAlias = scheduler_pb2.WorkerRole.ValueType

# Of workers that are meant for a part of each request.
PARTIAL: Mapping[Role, str] = {
    scheduler_pb2.WORKER_ROLE_PREFILL: "prefill",
    scheduler_pb2.WORKER_ROLE_DECODE: "decode",
}
NAMES: Mapping[Role, str] = {scheduler_pb2.WORKER_ROLE_UNIFIED: "unified", **PARTIAL}
BY_NAME: Mapping[str, Role] = {name: role for role, name in NAMES.items()}
