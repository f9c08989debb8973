"""`inferctl devices`, `models plan`, `rpc-server`: what models run on, and what they could run on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.markup import escape

from inferflux.cli.reach.client import Client
from inferflux.cli.reach.command import (
    ApiKey,
    AsJson,
    Endpoint,
    StateDirectory,
    as_dict,
    make_console,
    with_client,
)
from inferflux.cli.reach.errors import CommandError
from inferflux.cli.show.rows import bytes_words, make_table
from inferflux.v1 import cluster_pb2, device_pb2, scheduler_pb2

_PLAN = "inferflux.worker.files.plan"
_RPC_SERVER = "inferflux.worker.rpc_server"
_MAIN_MEMORY = "main memory"


def devices(
    endpoint: Endpoint = "",
    api_key: ApiKey = "",
    as_json: AsJson = False,
    state_dir: StateDirectory = None,
) -> None:
    """Show the devices of each worker, and what its model has there."""

    async def run(client: Client) -> None:
        status = await client.whole_status()
        if not as_json:
            make_console().print(devices_view(status))
            return
        found = [
            {"worker_id": worker.worker_id, "models": [card.name for card in worker.models]}
            | as_dict(worker.device_context)
            for worker in _told(status)
        ]
        sys.stdout.write(json.dumps(found, indent=2) + "\n")

    with_client(run, endpoint, api_key, state_dir)


def devices_view(status: cluster_pb2.GetStatusResponse) -> RenderableType:
    """A row per worker and device; then what is not as it was asked for."""
    if not status.HasField("scheduler"):
        return "[red]the scheduler does not answer: workers are unknown[/]"
    workers = _told(status)
    if not workers:
        return "[yellow]no worker has told its devices: no model is loaded[/]"
    table = make_table(
        "worker", "device", "", ">layers", ">weights", ">KV cache", ">compute", ">free", ">memory", "", last=0
    )
    lines: list[str] = []
    for worker in workers:
        context = worker.device_context
        for index, device in enumerate(context.devices):
            table.add_row(escape(worker.worker_id) if index == 0 else "", *_cells(device))
        served = f"{escape(worker.worker_id)}: {escape(', '.join(card.name for card in worker.models))} · "
        if not context.devices:
            lines.append(f"{served}its engine tells no devices: a model that embeds or ranks")
            continue
        lines.append(
            f"{served}{context.gpu_layers} of {context.layers} layers on GPUs · flash attention "
            + ("on" if context.flash_attention else "off")
        )
        said = [*context.warnings, context.flash_attention_reason]
        lines += [f"[yellow]{escape(worker.worker_id)}: {escape(line)}[/]" for line in said if line]
    return Group(table, "", *lines)


def _told(status: cluster_pb2.GetStatusResponse) -> list[scheduler_pb2.WorkerStatus]:
    return [view.status for view in status.scheduler.workers if view.status.HasField("device_context")]


def _cells(device: device_pb2.Device) -> list[str]:
    def amount(n_bytes: int) -> str:
        return bytes_words(n_bytes) if n_bytes else "[dim]-[/]"

    return [
        f"[bold]{escape(device.name)}[/]",
        escape(device.backend),
        str(device.layers) if device.layers else "[dim]-[/]",
        amount(device.weights_bytes),
        amount(device.kv_bytes),
        amount(device.compute_bytes),
        amount(device.memory_free_bytes),
        amount(device.memory_total_bytes),
        f"[dim]{escape(device.endpoint or device.description)}[/]",
    ]


def plan(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A GGUF file on this machine.")],
    gpus: Annotated[
        str, typer.Option(metavar="BYTES,...", help="Memory of each GPU, such as 24GiB,24GiB.")
    ] = "",
    memory: Annotated[
        str, typer.Option(metavar="BYTES", help="Main memory; what is free here by default.")
    ] = "",
    context: Annotated[int, typer.Option(min=0, help="Most tokens of one request; 0: the model's.")] = 0,
    slots: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 16,
    kv_cells: Annotated[int, typer.Option(min=0, help="Of the KV cache; 0: by slots and context.")] = 0,
    kv_type: Annotated[
        str, typer.Option(metavar="TYPE", help="Of keys and values, such as q8_0; or KEYS,VALUES.")
    ] = "f16",
    mmproj: Annotated[str, typer.Option(metavar="FILE", help="Its projector, on this machine.")] = "",
    as_json: AsJson = False,
) -> None:
    """Tell what of a model fits which GPUs, and the settings for it. Nothing is loaded."""
    arguments = [file, "--context", str(context), "--slots", str(slots), "--kv-cells", str(kv_cells)]
    arguments += ["--kv-type", kv_type, f"--gpus={gpus}", f"--memory={memory}"]
    arguments += [f"--mmproj={mmproj}"] if mmproj else []
    done = subprocess.run(
        [sys.executable, "-m", _PLAN, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise CommandError(_without_worker(lines) or (lines[-1] if lines else "the plan could not be made"))
    found = json.loads(done.stdout)
    if as_json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        make_console().print(plan_view(found))


def plan_view(plan: dict[str, Any]) -> RenderableType:
    """A row per device; the settings; then why."""
    table = make_table("device", ">layers", ">weights", ">KV cache", ">compute", ">in all", ">of", "", last=0)
    for device in plan["devices"]:
        table.add_row(
            device["name"],
            str(device["layers"]),
            bytes_words(device["weights"]),
            bytes_words(device["kv"]),
            bytes_words(device["compute"]),
            f"[bold]{bytes_words(device['total'])}[/]",
            # Of main memory alone it may not be known.
            "?" if not device["room"] and device["name"] == _MAIN_MEMORY else bytes_words(device["room"]),
            "[green]fits[/]" if device["fits"] else "[red]does not fit[/]",
        )
    size = f"{escape(plan['architecture'])}, {plan['layers']} layers, {bytes_words(plan['size_bytes'])}"
    cache = f"{plan['cells']:,} KV cells, {bytes_words(plan['kv_bytes'])}"
    settings = [f"{name}={value}" for name, value in plan["settings"].items()]
    notes = [f"[dim]{escape(note)}[/]" for note in plan["notes"]]
    return Group(f"{size} · {cache}", table, "", *settings, "", *notes)


def rpc_server(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where workers reach it: on a private network only.")
    ] = "127.0.0.1:50061",
    device: Annotated[
        list[str] | None, typer.Option(help="May be repeated; by default all GPUs, else the CPU.")
    ] = None,
    threads: Annotated[int, typer.Option(min=0, help="Of the CPU; 0: all usable cores.")] = 0,
    cache: Annotated[str, typer.Option(metavar="DIR", help="Keep tensors here that were sent once.")] = "",
) -> None:
    """Lend this machine's devices to a worker elsewhere, until Ctrl-C. The protocol is not secure."""
    command = [sys.executable, "-m", _RPC_SERVER, "--listen", listen, "--threads", str(threads)]
    command += [part for name in device or [] for part in ("--device", name)]
    command += ["--cache", cache] if cache else []
    os.execv(sys.executable, command)  # noqa: S606 - it is the same interpreter


def _without_worker(lines: list[str]) -> str:
    """Why, where the worker's package is not installed beside this one."""
    missing = any("No module named" in line for line in lines)
    return "it needs the package inferflux-worker, which is not installed here" if missing else ""
