"""What a heartbeat may say of devices."""

from __future__ import annotations

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.messages.heartbeats import MAX_DEVICES, check_status
from inferflux.v1 import device_pb2, scheduler_pb2

CPU = device_pb2.Device(name="CPU", description="AMD EPYC", backend="CPU", kind=device_pb2.DEVICE_KIND_CPU)


def status(**context: object) -> scheduler_pb2.WorkerStatus:
    return scheduler_pb2.WorkerStatus(
        worker_id="w",
        incarnation="i",
        state=scheduler_pb2.WORKER_STATE_READY,
        device_context=device_pb2.DeviceContext(**context),  # type: ignore[arg-type]
    )


def test_devices_of_a_worker_are_taken() -> None:
    check_status(status(devices=[CPU], warnings=["a"], flash_attention_by_context={"main": True}))


@pytest.mark.parametrize(
    ("context", "field"),
    [
        ({"devices": [CPU] * (MAX_DEVICES + 1)}, "devices"),
        ({"devices": [device_pb2.Device(name="x" * 300, kind=device_pb2.DEVICE_KIND_CPU)]}, "name"),
        ({"devices": [device_pb2.Device(name="x")]}, "kind"),
        ({"warnings": ["x" * 300]}, "warnings"),
        ({"flash_attention_reason": "x" * 300}, "flash_attention_reason"),
        ({"flash_attention_by_context": {f"c{i}": True for i in range(17)}}, "flash_attention_by_context"),
        ({"flash_attention_by_context": {"a context": True}}, "flash_attention_by_context"),
    ],
)
def test_what_no_worker_says_of_devices_is_refused_by_field(context: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_status(status(**context))
    assert field in caught.value.field
