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
    if "nats" not in stack.processes:
        raise CommandError("this InferFlux uses another nats-server: --config prints the user for that one")
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
    server = urlsplit(stack.tokens_url)
    url = f"{server.scheme}://{user.name}:{password}@{server.hostname}:{server.port}"
    asyncio.run(_until_accepted(url, stack.tls_ca))
    sys.stdout.write(f"{url}\n")


def _reload(directory: StateDir, stack: StackState) -> None:
    """Have the running nats-server read its users again."""
    from inferflux.cli.stack.access import grant

    workers = [name for name in stack.processes if name.startswith("worker-")]
    grant(directory, workers)
    os.kill(stack.processes["nats"], signal.SIGHUP)


async def _until_accepted(url: str, tls_ca: str) -> None:
    """Return when nats-server takes the user: it reads its users again in its own time."""
    import nats
    import nats.errors

    # It warns of the way in which nats-py ends a connection over TLS.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    options: dict[str, Any] = {"allow_reconnect": False, "connect_timeout": 2, "error_cb": _ignore}
    if tls_ca:
        options["tls"] = TlsFiles(*files_of(Path(tls_ca).parent, "client"), Path(tls_ca)).client_context()
    try:
        async with asyncio.timeout(_RELOAD_LIMIT_S):
            while True:
                client = nats.NATS()
                with contextlib.suppress(nats.errors.Error, OSError):
                    await client.connect(url, **options)
                    await client.close()
                    return
                await asyncio.sleep(_PAUSE_S)
    except TimeoutError:
        raise CommandError("nats-server did not take the user: its log says why") from None


async def _ignore(_error: Exception) -> None:
    """Ignore an error of the connection: the client tries again."""
