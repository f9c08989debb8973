"""Checks of the messages that reach a scheduler (pure).

Each function raises InvalidArgument, naming the field. What passes cannot make the core raise: numbers are
finite and fit the fields they are copied into, enums are known, names can stand in a subject. Heartbeats and
chunks are checked in `inferflux.common`, for other services receive them as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inferflux.common.contract import checks
from inferflux.common.contract.callers.cache_scope import check_cache_scope
from inferflux.common.contract.epochs import MAX_EPOCH
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.messages.heartbeats import MAX_REQUESTS, check_identity, check_requests
from inferflux.common.contract.models import admin_limits
from inferflux.common.contract.requests import adapters
from inferflux.common.contract.requests.answer_format import check_format
from inferflux.common.contract.requests.embedding_limits import check_task
from inferflux.common.contract.requests.generation_limits import (
    check_params,
    check_priority,
    check_token_ids,
)
from inferflux.common.contract.requests.images import MAX_PARTS, check_image_id
from inferflux.common.contract.requests.worker_pools import parse_pools
from inferflux.scheduler.core.order.tenant_service import HIGHEST, MOST_TENANTS
from inferflux.v1 import scheduler_pb2, worker_pb2

_MAX_TEXT_BYTES = 4096
# Requests in one report of who reads; gateways divide theirs.
_MOST_READ = 10_000
# Gateways bound it tighter.
_LONGEST_WINDOW_S = 86_400


def check_service(service: scheduler_pb2.PartitionService) -> None:
    """Check that what a leader has served can be counted."""
    checks.check_range(service.term, 0, 2**63 - 1, "term")
    checks.check_count(service.tenants, MOST_TENANTS, "tenants")
    for i, each in enumerate(service.tenants):
        checks.check_token(each.tenant, f"tenants[{i}].tenant")
        checks.check_range(each.served, 0.0, HIGHEST, f"tenants[{i}].served")


def check_job(request: scheduler_pb2.InferenceRequest) -> None:
    """A job can be scheduled. Its tenant and id have been checked."""
    checks.check_model_name(request.model)
    prompt, generated = request.prompt_token_ids, request.generated_token_ids
    if not prompt:
        raise InvalidArgument("prompt_token_ids is empty", field="prompt_token_ids")
    _check_not_negative(prompt, "prompt_token_ids")
    _check_not_negative(generated, "generated_token_ids")
    check_params(request.params)
    if generated and request.params.HasField("max_tokens") and len(generated) >= request.params.max_tokens:
        message = "generated_token_ids already reach params.max_tokens"
        raise InvalidArgument(message, field="generated_token_ids")
    if request.HasField("embedding"):
        check_task(request)
    check_priority(request.priority)
    checks.check_range(request.deadline_unix_ms, 0, 2**63 - 1, "deadline_unix_ms")
    checks.check_range(request.epoch, 0, MAX_EPOCH, "epoch")
    if request.attempt_id:
        checks.check_token(request.attempt_id, "attempt_id")
    if request.same_prompt_as:
        checks.check_token(request.same_prompt_as, "same_prompt_as")
    check_cache_scope(request.cache_scope, "cache_scope")
    if request.model_digest:
        checks.check_token(request.model_digest, "model_digest")
    checks.check_count(request.images, MAX_PARTS, "images")
    parse_pools(request.worker_pools)
    if request.zone:
        checks.check_token(request.zone, "zone")
    adapters.check_chosen(request.adapter, request.adapter_digest)
    checks.check_range(request.resume_window_s, 0, _LONGEST_WINDOW_S, "resume_window_s")
    check_format(request.answer_format, "answer_format")


def _check_not_negative(ids: Sequence[int], field: str) -> None:
    """Token ids can be of some vocabulary: which one, the worker knows."""
    if ids and min(ids[:]) < 0:  # as a list, and looked at once: prompts may be long
        check_token_ids(ids, checks.MAX_TOKENS + 1, field=field)


def check_event(event: scheduler_pb2.WorkerEvent) -> None:
    """An event could have come from a worker."""
    checks.check_token(event.worker_id, "worker_id")
    checks.check_token(event.incarnation, "incarnation")
    match event.WhichOneof("event"):
        case "request_finished":
            _check_ended(event.request_finished)
        case "request_yielded":
            _check_yielded(event.request_yielded)
        case "engine_died":
            check_requests(event.engine_died.residents, "engine_died.residents")
            check_image_id(event.engine_died.killer_image_id, "engine_died.killer_image_id")
        case "worker_left":
            check_requests(event.worker_left.residents, "worker_left.residents")
        case "state_taken":
            _check_taken(event.state_taken)
        case "worker_died":
            pass
        case _:
            raise InvalidArgument("no event that is known here", field="event")


def _check_ended(ended: scheduler_pb2.RequestFinished) -> None:
    check_identity(ended.tenant, ended.request_id, ended.epoch, "request_finished")
    checks.check_text(ended.outcome, _MAX_TEXT_BYTES, "request_finished.outcome")
    checks.check_range(ended.usage.completion_tokens, 0, checks.MAX_TOKENS, "request_finished.usage")
    first_ms = ended.time_to_first_token_ms
    checks.check_range(first_ms, 0.0, math.inf, "request_finished.time_to_first_token_ms")


def _check_yielded(yielded: scheduler_pb2.RequestYielded) -> None:
    check_identity(yielded.tenant, yielded.request_id, yielded.epoch, "request_yielded")
    checks.check_known(yielded.residence, scheduler_pb2.Residence, "request_yielded.residence")
    checks.check_range(yielded.run, 0, MAX_EPOCH, "request_yielded.run")
    checks.check_range(yielded.generated_tokens, 0, checks.MAX_TOKENS, "request_yielded.generated_tokens")


def _check_taken(taken: scheduler_pb2.StateTaken) -> None:
    check_identity(taken.tenant, taken.request_id, taken.epoch, "state_taken")
    checks.check_range(taken.tokens, 0, checks.MAX_TOKENS, "state_taken.tokens")
    checks.check_text(taken.error, _MAX_TEXT_BYTES, "state_taken.error")


def check_answer(answer: worker_pb2.BatchAccepted) -> None:
    """A worker's answer to a batch can be used. A reason of a later version is allowed."""
    checks.check_count(answer.accepted_request_ids, MAX_REQUESTS, "accepted_request_ids")
    checks.check_count(answer.refused, MAX_REQUESTS, "refused")
    for refusal in answer.refused:
        checks.check_text(refusal.message, _MAX_TEXT_BYTES, "refused.message")


def check_readers(notice: scheduler_pb2.ReaderNotice) -> None:
    """A gateway could have sent this notice. Names that no job here has are ignored, and need no check."""
    checks.check_token(notice.gateway_id, "gateway_id")
    checks.check_count(notice.now.requests, _MOST_READ, "now.requests")
    if notice.WhichOneof("notice") is None:
        raise InvalidArgument("no notice that is known here", field="notice")


_OF_ADMIN: Mapping[str, Callable[[Any], None]] = {
    "get_fairness": lambda _asked: None,
    "set_fairness": admin_limits.check_fairness,
    "drain": lambda asked: _check_drain(asked),
    "get_drain": lambda asked: admin_limits.check_worker_id(asked.worker_id),
    "clear_cache": admin_limits.check_clear_worker,
    "move": admin_limits.check_move,
    "load_model": admin_limits.check_load,
    "unload_model": admin_limits.check_unload,
    "add_adapter": admin_limits.check_add_adapter,
    "remove_adapter": admin_limits.check_remove_adapter,
    "pull_model": admin_limits.check_pull,
    "remove_model": admin_limits.check_stored,
    "verify_model": admin_limits.check_stored,
}


def _check_drain(asked: scheduler_pb2.DrainRequest) -> None:
    admin_limits.check_worker_id(asked.worker_id)
    if asked.HasField("hand_over_after_ms"):
        admin_limits.check_hand_over(asked.hand_over_after_ms)


def check_admin(request: scheduler_pb2.SchedulerAdminRequest) -> None:
    """An administrator asks for something known, in its range."""
    asked = request.WhichOneof("request")
    if asked is None or asked not in _OF_ADMIN:
        raise InvalidArgument("nothing is asked for that is known here", field="request")
    _OF_ADMIN[asked](getattr(request, asked))
