"""Looking at an installation: facts are gathered side by side, and checks decide about them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import distributions

from .checks import certificates as certificate_checks
from .checks import machine as machine_checks
from .checks import ports as port_checks
from .checks import programs, servers
from .checks import settings as settings_checks
from .facts import certificates, llama, machine, nats, ports, redis
from .finding import Finding, unknown
from .installation import Installation

_OURS = "inferflux-"
_MAX_STREAMS = "INFERFLUX_GATEWAY_MAX_STREAMS"
# gRPC's and the kernel's: beyond it a gateway is not set up.
_USUAL_STREAMS = 2048
_NO_SERVER = "no setting names one, and no stack runs here: `inferctl up` starts its own"


async def examine(installation: Installation) -> list[Finding]:
    """All findings, in the order of the table."""
    tls, env = installation.client_tls, installation.env
    values = installation.settings["worker"].values if "worker" in installation.services else {}
    redis_looks = (
        redis.look(url, tls, keeps_policy=installation.keeps_policy) for url in installation.redis_urls
    )
    nats_seen, redis_seen, llama_seen, memory_seen, ports_seen, folders = await asyncio.gather(
        asyncio.gather(*(nats.look(url, tls) for url in installation.nats_urls)),
        asyncio.gather(*redis_looks),
        llama.look(env),
        machine.memory(installation.model, values, env),
        asyncio.to_thread(ports.look, installation.ports()),
        asyncio.to_thread(lambda: [machine.folder(*one) for one in installation.folders()]),
    )
    runs = set(installation.services)
    has_gpu = any(count for name, count in llama_seen.backends.items() if name not in ("CPU", "RPC", "BLAS"))
    gateway = next(
        (port.pid for port in ports_seen if port.use.startswith("gateway") and port.is_owned), None
    )
    streams = int(installation.value(_MAX_STREAMS) or _USUAL_STREAMS)
    named = {name for name, value in env.items() if value}
    shared_memory = machine.shared_memory(installation.shm_bytes)
    found: list[Iterable[Finding]] = [
        settings_checks.decide(installation.settings, named, installation.services),
        programs.versions(_installed(), sys.version_info[:3]),
        programs.llama(llama_seen) if runs & {"gateway", "worker"} else (),
        port_checks.decide(ports_seen, is_running=installation.uses_stack),
        *(servers.nats(one) for one in nats_seen),
        *([] if nats_seen or runs == {"policy"} else [[unknown("nats", _NO_SERVER)]]),
        *(servers.redis(one) for one in redis_seen),
        *([] if redis_seen else [[unknown("redis", _NO_SERVER)]]),
        servers.clock(next(iter(nats_seen), None), next(iter(redis_seen), None)),
        certificate_checks.decide(certificates.look(installation.certificates()), datetime.now(UTC)),
        machine_checks.disk(folders),
        machine_checks.memory(memory_seen, has_gpu=has_gpu) if "worker" in runs else (),
        machine_checks.files(machine.files(streams, gateway)) if "gateway" in runs else (),
        machine_checks.shm(shared_memory, is_used=bool(installation.shm_bytes)) if "worker" in runs else (),
        programs.proxies(env, installation.called_hosts),
    ]
    return list(dict.fromkeys(finding for findings in found for finding in findings))


def _installed() -> dict[str, str]:
    """InferFlux's packages in this environment, and the version of each."""
    named = [(str(one.metadata["Name"]).lower().replace("_", "-"), one.version) for one in distributions()]
    # The first one on the path counts.
    return {name: version for name, version in reversed(named) if name.startswith(_OURS)}
