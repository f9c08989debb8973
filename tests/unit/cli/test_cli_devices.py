"""What devices and plans look like."""

from __future__ import annotations

from typing import Any

from rich.console import Console, RenderableType

from inferflux.cli.ask.devices import devices_view, plan_view
from inferflux.cli.show.status_tables import status_view
from inferflux.v1 import cluster_pb2, device_pb2, model_pb2, scheduler_pb2

GIB = 1 << 30


def shown(view: RenderableType) -> str:
    console = Console(width=160, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


def status(*contexts: device_pb2.DeviceContext | None) -> cluster_pb2.GetStatusResponse:
    workers = [
        scheduler_pb2.WorkerView(
            status=scheduler_pb2.WorkerStatus(
                worker_id=f"worker-{i}", models=[model_pb2.ModelCard(name="big")], device_context=context
            )
        )
        for i, context in enumerate(contexts)
    ]
    return cluster_pb2.GetStatusResponse(scheduler=scheduler_pb2.SchedulerStatus(workers=workers))


def test_a_device_is_a_row_with_what_the_model_has_there() -> None:
    context = device_pb2.DeviceContext(
        devices=[
            device_pb2.Device(name="CPU", description="AMD EPYC", backend="CPU", memory_total_bytes=64 * GIB),
            device_pb2.Device(
                name="RPC0",
                description="10.0.0.2:50061",
                endpoint="10.0.0.2:50061",
                backend="RPC",
                layers=33,
                weights_bytes=4 * GIB,
                kv_bytes=GIB,
            ),
        ],
        layers=33,
        gpu_layers=33,
        warnings=["INFERFLUX_WORKER_MAIN_GPU is 1"],
        flash_attention_reason="not supported",
    )
    lines = shown(devices_view(status(context, None))).splitlines()
    assert any(all(w in line for w in ("worker-0", "CPU", "64 GiB", "AMD EPYC")) for line in lines)
    assert any(all(w in line for w in ("RPC0", "33", "4 GiB", "1 GiB", "10.0.0.2:50061")) for line in lines)
    text = "\n".join(lines)
    assert "33 of 33 layers on GPUs · flash attention off" in text
    assert "INFERFLUX_WORKER_MAIN_GPU is 1" in text
    assert "not supported" in text
    assert "worker-1" not in text


def test_the_status_names_devices_that_are_not_the_cpu_alone() -> None:
    split = device_pb2.DeviceContext(
        devices=[device_pb2.Device(name="CPU"), device_pb2.Device(name="CUDA0", layers=20)],
        layers=33,
        gpu_layers=20,
    )
    cpu = device_pb2.DeviceContext(warnings=["no GPU"], layers=33)
    text = shown(status_view(status(split, cpu)))
    assert "worker-0: 20 of 33 layers on GPUs: CUDA0" in text
    assert "worker-1: no GPU" in text
    assert "worker-1: 0 of" not in text


def test_devices_that_are_not_known_are_said_so() -> None:
    assert "no model is loaded" in shown(devices_view(status(None)))
    assert "does not answer" in shown(devices_view(cluster_pb2.GetStatusResponse()))


def test_a_plan_has_a_row_per_device_the_settings_and_why() -> None:
    device: dict[str, Any] = {
        "name": "GPU 0",
        "room": 24 * GIB,
        "layers": 33,
        "weights": 4 * GIB,
        "kv": GIB,
        "compute": GIB,
        "total": 6 * GIB,
        "fits": True,
    }
    text = shown(
        plan_view(
            {
                "architecture": "llama",
                "layers": 33,
                "size_bytes": 4 * GIB,
                "cells": 4096,
                "kv_bytes": GIB,
                "devices": [device, device | {"name": "main memory", "room": 0, "fits": False}],
                "settings": {"INFERFLUX_WORKER_GPU_LAYERS": "-1"},
                "notes": ["Estimates."],
            }
        )
    )
    assert "INFERFLUX_WORKER_GPU_LAYERS=-1" in text
    assert "Estimates." in text
    assert "does not fit" in text
