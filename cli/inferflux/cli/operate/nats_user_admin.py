"""`inferctl admin nats-user`: who may read a tenant's tokens straight from NATS."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from inferflux.cli.reach.command import StateDirectory, state_path
from inferflux.cli.reach.errors import CommandError
from inferflux.cli.reach.state_dir import FIRST_TENANT, StackState, StateDir
from inferflux.cli.stack.cert_files import files_of
from inferflux.common.contract.callers.tenants import parse_tenant
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.process.tls import TlsFiles
from inferflux.common.servers import nats_users

_RELOAD_LIMIT_S = 10.0
_PAUSE_S = 0.05


def nats_user(
    tenant: Annotated[str, typer.Argument(help="Whose tokens the user may read, and nothing else.")],
    remove: Annotated[bool, typer.Option("--remove", help="Take the user from the local stack.")] = False,
    config: Annotated[
        bool, typer.Option("--config", help="Print the user for the configuration of your own nats-server.")
    ] = False,
    state_dir: StateDirectory = None,
) -> None:
    """Make a user of NATS who reads one tenant's tokens; print the address with its password."""
    try:
        parse_tenant(tenant)
    except InvalidArgument as error:
        raise typer.BadParameter(error.message) from None
    user = nats_users.observer(tenant)
    if config:
        password = secrets.token_urlsafe(24)
        sys.stdout.write(nats_users.users_config([user], {user.name: password}))
        return
    directory = StateDir(state_path(state_dir))
    stack = directory.running()
    if stack is None:
        raise CommandError(
            "no InferFlux runs here: --config prints the user for a nats-server of your own, "
            "and --state-dir names a stack that has its own"
        )
    if remove:
        if tenant == FIRST_TENANT:
            raise CommandError(f"the user of the tenant {tenant} is part of every stack")
        with directory.changing_access():
            if user.name not in directory.passwords("nats"):
                raise CommandError(f"there is no user {user.name}")
            directory.forget_password("nats", user.name)
            _reload(directory, stack)
        sys.stdout.write(f"{user.name} may connect no more\n")
        return
    with directory.changing_access():
        password = directory.passwords("nats", [user.name])[user.name]
        _reload(directory, stack)
    servers = [urlsplit(server) for server in stack.tokens_url.split(",")]
    urls = [f"{one.scheme}://{user.name}:{password}@{one.hostname}:{one.port}" for one in servers]
    asyncio.run(_until_accepted(urls, stack.tls_ca))
    sys.stdout.write(f"{','.join(urls)}\n")


def _reload(directory: StateDir, stack: StackState) -> None:
    """Have the running nats-servers read their users again."""
    from inferflux.cli.stack.access import grant

    workers = [name for name in stack.processes if name.startswith("worker-")]
    grant(directory, workers)
    for name, pid in stack.processes.items():
        if name.split("-")[0] == "nats":
            os.kill(pid, signal.SIGHUP)


async def _until_accepted(urls: list[str], tls_ca: str) -> None:
    """Return when every nats-server takes the user: each reads its users again in its own time."""
    import nats
    import nats.errors

    # It warns of the way in which nats-py ends a connection over TLS.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    options: dict[str, Any] = {"allow_reconnect": False, "connect_timeout": 2, "error_cb": _ignore}
    if tls_ca:
        options["tls"] = TlsFiles(*files_of(Path(tls_ca).parent, "client"), Path(tls_ca)).client_context()
    try:
        async with asyncio.timeout(_RELOAD_LIMIT_S):
            left = list(urls)
            while left:
                client = nats.NATS()
                with contextlib.suppress(nats.errors.Error, OSError):
                    await client.connect(left[0], **options)
                    await client.close()
                    left.pop(0)
                    continue
                await asyncio.sleep(_PAUSE_S)
    except TimeoutError:
        raise CommandError("nats-server did not take the user: its log says why") from None


async def _ignore(_error: Exception) -> None:
    """Ignore an error of the connection: the client tries again."""
