"""Checks of the messages that reach a worker (pure).

The engine trusts what passes: llama.cpp aborts on bad ids, counts and positions, and a number that is not
finite breaks the order of the sequences. `worker_state` decides whether a term counts. Each function raises
InvalidArgument, naming the field.
"""

from __future__ import annotations

from inferflux.common.contract import checks
from inferflux.common.contract.callers.cache_scope import check_cache_scope
from inferflux.common.contract.epochs import MAX_EPOCH
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.messages.heartbeats import check_identity
from inferflux.common.contract.models.admin_limits import MAX_SCOPE_BYTES
from inferflux.common.contract.requests.adapters import check_chosen
from inferflux.v1 import scheduler_pb2, worker_pb2
from inferflux.worker.transfer.packets import check_origin, check_prefix

MAX_ITEMS = 4096
_MAX_ID_BYTES = 128


def check_batch(batch: worker_pb2.RequestBatch) -> None:
    """Check a batch, without its items."""
    checks.check_text(batch.batch_id, _MAX_ID_BYTES, "batch_id")
    checks.check_count(batch.items, MAX_ITEMS, "items")
    checks.check_count(batch.deschedule, MAX_ITEMS, "deschedule")
    for wanted in batch.deschedule:
        _check_deschedule(wanted)
    if batch.items:
        checks.check_known(batch.phase, worker_pb2.Phase, "phase")


def check_item(item: worker_pb2.BatchItem) -> None:
    """Check the identity and the urgency of an item."""
    request = item.request
    check_identity(request.tenant, request.request_id, request.epoch, "request")
    checks.check_range(request.epoch, 1, MAX_EPOCH, "request.epoch")
    if request.attempt_id:
        checks.check_token(request.attempt_id, "request.attempt_id")
    check_cache_scope(request.cache_scope, "request.cache_scope")
    check_chosen(request.adapter, request.adapter_digest, "request.adapter")
    checks.check_finite(item.urgency_key, "urgency_key")
    checks.check_range(item.run, 0, MAX_EPOCH, "run")
    if item.HasField("state_from"):
        check_origin(item.state_from, "state_from")
    checks.check_range(item.token_budget, 0, checks.MAX_TOKENS, "token_budget")


def check_command(command: worker_pb2.WorkerCommand) -> None:
    """Check a command."""
    if command.HasField("drop"):
        check_identity(command.drop.tenant, command.drop.request_id, command.drop.epoch, "drop")
    if command.HasField("deschedule"):
        _check_deschedule(command.deschedule)
    if command.HasField("clear_cache"):
        _check_clear(command.clear_cache)
    if command.HasField("take_state"):
        _check_take(command.take_state)


def _check_take(take: worker_pb2.TakeState) -> None:
    check_identity(take.tenant, take.request_id, take.origin.epoch, "take_state")
    checks.check_range(take.origin.epoch, 1, MAX_EPOCH, "take_state.origin.epoch")
    check_origin(take.origin, "take_state.origin")
    check_prefix(take.token_ids, take.cache_scope, "take_state.")


def _check_clear(clear: scheduler_pb2.ClearCache) -> None:
    checks.check_text(clear.cache_scope, MAX_SCOPE_BYTES, "clear_cache.cache_scope")
    if not (clear.prefixes or clear.tiers):
        raise InvalidArgument("nothing is to be cleared", field="clear_cache")


def _check_deschedule(wanted: worker_pb2.Deschedule) -> None:
    check_identity(wanted.tenant, wanted.request_id, wanted.epoch, "deschedule")
    checks.check_range(wanted.run, 0, MAX_EPOCH, "deschedule.run")
