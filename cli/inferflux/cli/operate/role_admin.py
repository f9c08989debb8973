"""`inferctl admin roles`: named sets of scopes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from inferflux.cli.reach.client import Client
from inferflux.cli.reach.command import (
    ApiKey,
    AsJson,
    Endpoint,
    StateDirectory,
    make_console,
    print_json,
    with_client,
)
from inferflux.cli.show.policy_tables import roles_table
from inferflux.v1 import policy_pb2

roles = typer.Typer(help="Named sets of scopes, for keys.", no_args_is_help=True)

RoleName = Annotated[str, typer.Argument(metavar="ROLE", help="1-63 of a-z 0-9 _ -")]
Version = Annotated[int, typer.Option(min=0, help="Only if it still has this version.")]


@roles.command("list")
def list_roles(
    as_json: AsJson = False, endpoint: Endpoint = "", api_key: ApiKey = "", state_dir: StateDirectory = None
) -> None:
    """List roles, with those that every InferFlux has."""

    async def run(client: Client) -> None:
        found = await client.whole_list("ListRoles", policy_pb2.ListRolesRequest())
        print_json(found) if as_json else make_console().print(roles_table(found.roles))

    with_client(run, endpoint, api_key, state_dir)


@roles.command("set")
def set_role(
    name: RoleName,
    scope: Annotated[list[str], typer.Option("--scope", help="Such as inference; several times.")],
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", "-m", help="It gives inference for this one alone, or for names with *; several times."
        ),
    ] = None,
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
    version: Version = 0,
    as_json: AsJson = False,
    endpoint: Endpoint = "",
    api_key: ApiKey = "",
    state_dir: StateDirectory = None,
) -> None:
    """Make a role, or replace it; the next calls of keys that have it follow."""
    role = policy_pb2.Role(name=name, scopes=scope, models=model, description=description, version=version)

    async def run(client: Client) -> None:
        response = await client.policy("SetRole", policy_pb2.SetRoleRequest(role=role))
        print_json(response) if as_json else make_console().print(roles_table([response.role]))

    with_client(run, endpoint, api_key, state_dir)


@roles.command()
def delete(
    name: RoleName,
    version: Version = 0,
    as_json: AsJson = False,
    endpoint: Endpoint = "",
    api_key: ApiKey = "",
    state_dir: StateDirectory = None,
) -> None:
    """Remove a role: keys that have it lose what it gave them."""

    async def run(client: Client) -> None:
        made = await client.policy("DeleteRole", policy_pb2.DeleteRoleRequest(name=name, version=version))
        print_json(made) if as_json else sys.stdout.write(f"there is no role {name} any more\n")

    with_client(run, endpoint, api_key, state_dir)
