"""What a worker logs of a request names the request."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from inferflux.v1 import engine_pb2, scheduler_pb2, worker_pb2
from inferflux.worker.model import request_log
from inferflux.worker.model.residents import Limits, Refused, Resident, ResidentTable

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
RESIDENT = Resident("one", "acme", 2, prompt_tokens=40, trace_id=TRACE_ID)
ENDED = engine_pb2.EngineFinished(outcome="stop", completion_tokens=3)
REQUEST = scheduler_pb2.InferenceRequest(
    request_id="one",
    tenant="acme",
    epoch=2,
    traceparent=f"00-{TRACE_ID}-b7ad6b7169203331-01",
    prompt_token_ids=[1],
)


@pytest.mark.parametrize(
    "write",
    [
        lambda: request_log.taken_up(RESIDENT),
        lambda: request_log.resumed(RESIDENT),
        lambda: request_log.yielded(RESIDENT, scheduler_pb2.YIELD_REASON_MEMORY),
        lambda: request_log.finished(RESIDENT, ENDED),
        lambda: request_log.left(RESIDENT, "engine_died"),
    ],
)
def test_a_line_has_request_id_tenant_epoch_and_trace_id(write: Callable[[], None]) -> None:
    with capture_logs() as lines:
        write()
    (line,) = lines
    assert (line["request_id"], line["tenant"], line["epoch"]) == ("one", "acme", 2)
    assert line["trace_id"] == TRACE_ID


def test_a_refused_request_is_named() -> None:
    refusal = Refused(worker_pb2.REFUSAL_REASON_NOT_READY, "the engine is not ready")
    with capture_logs() as lines:
        request_log.refused(worker_pb2.BatchItem(request=REQUEST), refusal)
    assert (lines[0]["request_id"], lines[0]["why"]) == ("one", "the engine is not ready")


def test_a_resident_keeps_the_trace_id_of_its_request() -> None:
    table = ResidentTable()
    table.limits = Limits(slots=1, kv_cells=64, context_length=64, vocabulary_size=8)
    REQUEST.params.max_tokens = 1
    resident, _ = table.admit(worker_pb2.BatchItem(request=REQUEST))
    assert resident.trace_id == TRACE_ID
