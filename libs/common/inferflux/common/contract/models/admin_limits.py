"""The ranges of what an administrator may ask for: one definition for gateway and scheduler.

Both ends are included:

| field | allowed |
|---|---|
| change.high_priority_threshold | -1000 to 1000 |
| change.max_timeslice_tokens | 0 to 1,000,000 |
| worker_id | 1 to 64 of A-Z a-z 0-9 _ - |
| hand_over_after_ms | 0 to 86,400,000 |
| model | at most 256 bytes |
| tenant, request_id | 1 to 64 of A-Z a-z 0-9 _ - |

Pure; every error names its field.
"""

from __future__ import annotations

import re

from inferflux.common.contract import subjects
from inferflux.common.contract.checks import (
    check_count,
    check_known,
    check_model_name,
    check_range,
    check_text,
    check_token,
)
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.messages.hosts import MAX_ALIASES, MAX_PATH_BYTES
from inferflux.common.contract.requests import adapters
from inferflux.v1 import admin_pb2, model_pb2, scheduler_pb2

from .model_sources import MAX_SOURCE_BYTES, parse_source

# Beyond every priority, so that nothing, or everything, can be urgent.
MAX_THRESHOLD = 1000
MAX_TIMESLICE_TOKENS = 1_000_000
MAX_HAND_OVER_MS = 86_400_000
# As `cache_scope_of` makes them.
MAX_SCOPE_BYTES = 128


def check_fairness(change: scheduler_pb2.SetFairness) -> None:
    """Check that something changes, to values that make sense."""
    if change == scheduler_pb2.SetFairness(version=change.version):
        raise InvalidArgument("nothing is to be changed", field="change")
    threshold, timeslice = change.high_priority_threshold, change.max_timeslice_tokens
    check_range(threshold, -MAX_THRESHOLD, MAX_THRESHOLD, "change.high_priority_threshold")
    check_range(timeslice, 0, MAX_TIMESLICE_TOKENS, "change.max_timeslice_tokens")


def check_worker_id(worker_id: str) -> None:
    """Raises InvalidArgument when no worker could have that id."""
    if not worker_id:
        raise InvalidArgument("no worker is named", field="worker_id")
    if not subjects.is_safe_token(worker_id):
        raise InvalidArgument("a worker's id is 1-64 of A-Z a-z 0-9 _ -", field="worker_id")


def check_hand_over(after_ms: int | None) -> None:
    """Raises InvalidArgument for more than a day; None is never."""
    if after_ms is not None:
        check_range(after_ms, 0, MAX_HAND_OVER_MS, "hand_over_after_ms")


def check_move(request: admin_pb2.MoveRequestRequest | scheduler_pb2.MoveRequest) -> None:
    """A request could have that name, and a worker the other one."""
    check_token(request.request_id, "request_id")
    check_worker_id(request.worker_id)
    if request.tenant:
        check_token(request.tenant, "tenant")


def check_clear(request: admin_pb2.ClearCacheRequest) -> None:
    """Check the names in a request to clear caches."""
    if request.model:
        check_model_name(request.model)
    if request.tenant:
        check_token(request.tenant, "tenant")
    if request.worker_id:
        check_worker_id(request.worker_id)
        if request.answers:
            message = "answers are kept in Redis: no worker has any, so name none or leave them out"
            raise InvalidArgument(message, field="worker_id")


def check_clear_worker(request: scheduler_pb2.ClearWorkerCache) -> None:
    """A worker could be asked to clear that."""
    check_worker_id(request.worker_id)
    check_text(request.clear.cache_scope, MAX_SCOPE_BYTES, "clear.cache_scope")
    if not (request.clear.prefixes or request.clear.tiers):
        raise InvalidArgument("nothing is to be cleared", field="clear")


# Fields of LoadModelRequest that say how a file is to be served.
_WITH_PATH = ("is_pinned", "aliases", "role", "deterministic", "mmproj_path")


def check_load(request: model_pb2.LoadModelRequest) -> None:
    """A model could be loaded that way."""
    if request.name or not request.path:
        check_model_name(request.name, field="name")
    check_text(request.path, MAX_PATH_BYTES, "path")
    if request.path and not request.path.startswith("/"):
        raise InvalidArgument(
            "the path of a model file must be absolute: it is read on its host", field="path"
        )
    if request.host_id:
        check_token(request.host_id, "host_id")
    if request.role:
        check_known(request.role, model_pb2.ModelRole, "role")
    given = {field.name for field, _ in request.ListFields()}
    for name in _WITH_PATH if not request.path else ():
        if name in given:
            message = "it goes with a path: a known model stays as it was registered"
            raise InvalidArgument(message, field=name)
    check_text(request.mmproj_path, MAX_PATH_BYTES, "mmproj_path")
    check_text(request.chat_template_path, MAX_PATH_BYTES, "chat_template_path")
    if request.chat_template_path and not (request.path and request.chat_template_path.startswith("/")):
        message = "chat_template_path: an absolute path, beside that of a model's file"
        raise InvalidArgument(message, field="chat_template_path")
    if request.mmproj_path and not request.mmproj_path.startswith("/"):
        message = "the path of a projector must be absolute: it is read on the model's host"
        raise InvalidArgument(message, field="mmproj_path")
    check_count(request.aliases, MAX_ALIASES, "aliases")
    for alias in request.aliases:
        check_model_name(alias, field="aliases")


def check_pull(request: model_pb2.PullRequest) -> None:
    """A model could be pulled that way."""
    parse_source(request.source)
    if request.name:
        check_model_name(request.name, field="name")
    if request.host_id:
        check_token(request.host_id, "host_id")
    if request.sha256 and re.fullmatch(r"[0-9a-f]{64}", request.sha256) is None:
        raise InvalidArgument("a SHA-256 is 64 of 0-9 a-f", field="sha256")
    check_text(request.mmproj, MAX_SOURCE_BYTES, "mmproj")


def check_stored(request: model_pb2.RemoveModelRequest | model_pb2.VerifyModelRequest) -> None:
    """A store could have such a model. What is removed is named."""
    if request.name or isinstance(request, model_pb2.RemoveModelRequest):
        check_model_name(request.name, field="name")
    if request.host_id:
        check_token(request.host_id, "host_id")


def check_unload(request: model_pb2.UnloadModelRequest) -> None:
    """A model could be unloaded that way."""
    check_model_name(request.name, field="name")
    if request.host_id:
        check_token(request.host_id, "host_id")


def check_add_adapter(request: model_pb2.AddAdapterRequest) -> None:
    """A file could become that adapter of that model."""
    check_model_name(request.model)
    adapters.check_name(request.adapter, "adapter")
    check_text(request.path, MAX_PATH_BYTES, "path")
    if not request.path.startswith("/"):
        message = "the path of an adapter's file must be absolute: it is read on the model's host"
        raise InvalidArgument(message, field="path")
    if request.HasField("scale"):
        adapters.check_scale(request.scale, "scale")
    if request.host_id:
        check_token(request.host_id, "host_id")


def check_remove_adapter(request: model_pb2.RemoveAdapterRequest) -> None:
    """A model could have that adapter."""
    check_model_name(request.model)
    adapters.check_name(request.adapter, "adapter")
    if request.host_id:
        check_token(request.host_id, "host_id")
