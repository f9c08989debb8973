"""Flags of `inferctl up`, and the options of a stack that they mean."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from .reach.command import StateDirectory, state_path

if TYPE_CHECKING:
    from .stack import StackOptions

# Groups of the flags in the help.
_PORTS, _PROCESSES, _ENGINE = "Ports", "Processes", "Each worker's engine"
# Workers that can share a folder of KV state.
MOST_WORKERS = 64
_GONE = ("--nats", "--redis", "--sentinel")


class UpCommand(TyperCommand):
    """The command; flags that it had are refused with the place where clusters are started now."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for flag in (arg.partition("=")[0] for arg in args):
            if flag in _GONE:
                raise typer.BadParameter(
                    f"{flag} is gone: compose starts clusters (docker-compose.fleet.yml, docs/fleet.md)"
                )
        return super().parse_args(ctx, args)


@dataclass(frozen=True, slots=True)
class UpFlags:
    """Flags of a stack."""

    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME|FILE|SOURCE",
            help="smollm2 (the default: 93 MB are fetched, once), demo (3 MB, is here), gemma3; a GGUF "
            "file; a model that was pulled; or hf:owner/repo[:quantization], https://..., ollama:name.",
        ),
    ] = ""
    model_name: Annotated[str, typer.Option(help="Name clients use; the file's name by default.")] = ""
    gateway_port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Where clients call; 0 takes any free port.", rich_help_panel=_PORTS
        ),
    ] = 50051
    http_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="The same over HTTP; by default 8080, or any free port where that is taken.",
            rich_help_panel=_PORTS,
        ),
    ] = None
    policy_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Policy's; 0 as above.", rich_help_panel=_PORTS)
    ] = 50052
    nats_port: Annotated[
        int, typer.Option(min=0, max=65535, help="nats-server's; 0 as above.", rich_help_panel=_PORTS)
    ] = 4222
    redis_port: Annotated[
        int, typer.Option(min=0, max=65535, help="valkey-server's; 0 as above.", rich_help_panel=_PORTS)
    ] = 6379
    free_ports: Annotated[
        bool,
        typer.Option(
            "--free-ports",
            help="Take free ports for all of these, whatever they say.",
            rich_help_panel=_PORTS,
        ),
    ] = False
    policies: Annotated[
        int,
        typer.Option(
            min=1,
            max=16,
            help="Policy processes; all but the first take free ports.",
            rich_help_panel=_PROCESSES,
        ),
    ] = 1
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_WORKERS,
            help="Workers, each with the whole model. By default 1; none beside --prefill and --decode.",
            rich_help_panel=_PROCESSES,
        ),
    ] = None
    prefill: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MOST_WORKERS,
            help="Workers for prompts; 1 where only --decode is given.",
            rich_help_panel=_PROCESSES,
        ),
    ] = None
    decode: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MOST_WORKERS,
            help="Workers for answers; 1 where only --prefill is given.",
            rich_help_panel=_PROCESSES,
        ),
    ] = None
    schedulers: Annotated[
        int,
        typer.Option(
            min=1,
            max=16,
            help="Schedulers: one leads, the others take over when it dies.",
            rich_help_panel=_PROCESSES,
        ),
    ] = 1
    partitions: Annotated[
        int,
        typer.Option(
            min=1,
            max=64,
            help="Parts of the models that schedulers lead; they divide them.",
            rich_help_panel=_PROCESSES,
        ),
    ] = 1
    gateways: Annotated[
        int,
        typer.Option(
            min=1, max=16, help="Gateways; all but the first take free ports.", rich_help_panel=_PROCESSES
        ),
    ] = 1
    zones: Annotated[
        str,
        typer.Option(
            metavar="NAME,NAME",
            help="Zones that gateways, and workers, are dealt out to in turn. Else $INFERFLUX_ZONE for all.",
            rich_help_panel=_PROCESSES,
        ),
    ] = ""
    slots: Annotated[
        int, typer.Option(min=0, help="Requests at once per worker; 0: its default.", rich_help_panel=_ENGINE)
    ] = 0
    threads: Annotated[
        int,
        typer.Option(
            min=0,
            help="CPU threads per worker; 0: the cores divided by the workers.",
            rich_help_panel=_ENGINE,
        ),
    ] = 0
    kv_cells: Annotated[
        int,
        typer.Option(
            min=0, help="Tokens each worker's KV cache holds; 0: fits the slots.", rich_help_panel=_ENGINE
        ),
    ] = 0
    drain_limit: Annotated[
        float,
        typer.Option(
            min=0, envvar="INFERFLUX_DRAIN_LIMIT_S", help="Seconds that running requests get at the end."
        ),
    ] = 30.0
    tls: Annotated[
        bool,
        typer.Option("--tls", help="Encrypt connections, with certificates made for this stack."),
    ] = False
    state_dir: StateDirectory = None
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="YAML: further models that the workers know. Else $INFERFLUX_CONFIG.",
        ),
    ] = None
    chat_template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="A chat template in place of the model's own.",
        ),
    ] = None

    def options(self) -> StackOptions:
        """Options of the stack that is asked for.

        Raises:
            typer.BadParameter: flags contradict each other.
            CommandError: there is no such model, or it cannot be had.
        """
        from .stack import CHAT_TEMPLATE, DISK_PATH, MMPROJ, MODELS_STORE, THREADS, StackOptions
        from .up import chosen_model, null_workers_of, zones_of

        if self.tls and self.policies > 1:
            raise typer.BadParameter("1 with --tls: gateways check its name", param_hint="--policies")
        workers, prefill, decode = self._counts()
        null_workers, state_dir = null_workers_of(os.environ), state_path(self.state_dir)
        chosen = chosen_model(self.model, state_dir, needs_answers=not null_workers)
        files = {"INFERFLUX_CONFIG": self.config, MMPROJ: chosen.mmproj, CHAT_TEMPLATE: self.chat_template}
        has_ports = not self.free_ports
        return StackOptions(
            model=chosen.path,
            model_name=self.model_name or chosen.name,
            policies=self.policies,
            zones=zones_of(self.zones),
            state_dir=state_dir,
            gateway_port=self.gateway_port * has_ports,
            http_port=self.http_port if has_ports else 0,
            policy_port=self.policy_port * has_ports,
            nats_port=self.nats_port * has_ports,
            redis_port=self.redis_port * has_ports,
            workers=workers,
            prefill=prefill,
            decode=decode,
            null_workers=null_workers,
            schedulers=self.schedulers,
            partitions=self.partitions,
            gateways=self.gateways,
            slots=self.slots,
            threads=self.threads,
            divides_cores=THREADS not in os.environ,
            kv_cells=self.kv_cells,
            env={name: str(path.expanduser().absolute()) for name, path in files.items() if path},
            drain_limit_s=self.drain_limit,
            # With a folder on a disk state would go from worker to worker through that.
            has_disk_tier=DISK_PATH not in os.environ and not (prefill or decode),
            has_store=MODELS_STORE not in os.environ,
            has_tls=self.tls,
        )

    def _counts(self) -> tuple[int, int, int]:
        """Workers for whole requests, for prompts and for answers: a role has no use without the other.

        Raises:
            typer.BadParameter: they are too many.
        """
        has_roles = bool(self.prefill or self.decode)
        given = (self.prefill, self.decode)
        workers = self.workers if self.workers is not None else int(not has_roles)
        prefill, decode = (int(has_roles) if count is None else count for count in given)
        if workers + prefill + decode > MOST_WORKERS:
            message = f"{workers + prefill + decode} workers in all: {MOST_WORKERS} at most on a machine"
            raise typer.BadParameter(message, param_hint="--workers, --prefill, --decode")
        return workers, prefill, decode
