"""Options of the one-machine stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inferflux.cli.reach.errors import CommandError
from inferflux.common.process.gone_settings import refusals

from .servers import NATS_SYNC_INTERVAL

DISK_PATH = "INFERFLUX_WORKER_DISK_PATH"
MODELS_STORE = "INFERFLUX_MODELS_STORE"
MMPROJ = "INFERFLUX_WORKER_MMPROJ_PATH"
CHAT_TEMPLATE = "INFERFLUX_WORKER_CHAT_TEMPLATE"
THREADS = "INFERFLUX_WORKER_THREADS"
ZONE = "INFERFLUX_ZONE"
ENGINE = "INFERFLUX_WORKER_ENGINE"
NULL_WORKERS = "INFERFLUX_WORKER_NULL_WORKERS"
ROLE = "INFERFLUX_ROLE"
# Ready workers of a role that schedulers expect.
POOL_SIZES = {"prefill": "INFERFLUX_PREFILL_POOL_SIZE", "decode": "INFERFLUX_DECODE_POOL_SIZE"}
DEMO_MODEL = Path("models") / "inferflux-demo.gguf"


@dataclass(frozen=True, slots=True)
class StackOptions:
    """Options of a stack. Port 0 takes any free one; settings left at 0 or "" are the services' own defaults.

    Attributes:
        model: the GGUF file to serve; None is the demo model.
        http_port: None is 8080, or any free port where that is taken.
        workers: those that compute whole requests; those of other roles come beside them.
        prefill: workers that are meant for prompts.
        decode: workers that are meant for answers.
        null_workers: workers without a model in each worker process; 0: it has a model and an engine.
        schedulers: one of them leads each partition.
        partitions: of the models.
        gateways: the first has the ports asked for, the others free ones.
        threads: of each worker's engine; 0: see `divides_cores`.
        divides_cores: whether workers that are told no number of threads divide the cores among themselves.
        state_dir: keys, data and logs; None is a temporary directory, removed at the end.
        env: set for every service.
        service_env: set for one process (`worker-0`) or every process of a kind (`worker`).
        cpus: which CPUs a process or every process of a kind may run on; all when absent.
        restarts: whether a process that dies is started again.
        start_limit_s: longest wait until everything is ready.
        drain_limit_s: how long running requests get to finish at the end.
        nats_url: of NATS that runs already, a server or several, and `redis_url` of Redis, as services take
            them; empty: a server of the stack's own.
        policies: processes of policy; with TLS one.
        zones: that gateways, and workers, are dealt out to in turn; none: as the environment has it.
        nats_store: where nats-server keeps its streams; None is below `state_dir`.
        has_disk_tier: whether workers keep KV state below `state_dir`.
        has_store: whether they keep models that are pulled there, all in one folder.
        nats_sync_interval: how often nats-server syncs them to the disk.
        has_tls: whether connections are encrypted, and services show certificates to each other. Not those to
            Redis: its server here does not speak TLS.
    """

    model: Path | None = None
    model_name: str = ""
    state_dir: Path | None = None
    gateway_port: int = 0
    http_port: int | None = 0
    policy_port: int = 0
    nats_port: int = 0
    redis_port: int = 0
    nats_url: str = ""
    redis_url: str = ""
    policies: int = 1
    zones: Sequence[str] = ()
    workers: int = 1
    prefill: int = 0
    decode: int = 0
    null_workers: int = 0
    schedulers: int = 1
    partitions: int = 1
    gateways: int = 1
    slots: int = 0
    threads: int = 0
    divides_cores: bool = True
    kv_cells: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    service_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    cpus: Mapping[str, frozenset[int]] = field(default_factory=dict)
    restarts: bool = True
    start_limit_s: float = 600.0
    drain_limit_s: float = 30.0
    nats_store: Path | None = None
    has_disk_tier: bool = False
    has_store: bool = False
    nats_sync_interval: str = NATS_SYNC_INTERVAL
    has_tls: bool = False

    @property
    def role_words(self) -> str:
        """How many workers have which role, in words; "" without roles."""
        counts = ((self.workers, "unified"), (self.prefill, "prefill"), (self.decode, "decode"))
        has_roles = self.prefill or self.decode
        return ", ".join(f"{count} {role}" for count, role in counts if count) if has_roles else ""

    @property
    def n_workers(self) -> int:
        """Workers in all its processes."""
        return len(self.worker_roles) * max(self.null_workers, 1)

    @property
    def worker_roles(self) -> dict[str, str]:
        """Name of each worker process, and its role; "" where the environment says it."""
        pools = {"prefill": self.prefill, "decode": self.decode}
        has_roles = any(pools.values())
        roles = {f"worker-{index}": "unified" if has_roles else "" for index in range(self.workers)}
        return roles | {
            f"worker-{role}-{index}": role for role, count in pools.items() for index in range(count)
        }


def check_variables(env: Mapping[str, str]) -> None:
    """Raises:
    CommandError: services refuse to start with this environment: a variable is gone.
    """
    if gone := refusals(env):
        raise CommandError("\n".join(gone))


def find_model(given: Path | None) -> Path:
    """The model file: the given one, else the demo model of the checkout this runs from.

    Raises:
        CommandError: there is no such file, or it is not GGUF at all.
    """
    path = given.expanduser().absolute() if given else _demo_model()
    if not path.is_file():
        raise CommandError(f"there is no model file {path} (--model)")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror} (--model)") from None
    if magic != b"GGUF":
        raise CommandError(f"{path} is not a GGUF file: it starts with {magic!r} (--model)")
    return path


def _demo_model() -> Path:
    for folder in (Path.cwd(), *Path(__file__).resolve().parents):
        if (folder / DEMO_MODEL).is_file():
            return folder / DEMO_MODEL
    raise CommandError(f"found no {DEMO_MODEL} here or in the checkout: name a GGUF file with --model")
