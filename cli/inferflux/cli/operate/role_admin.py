"""`inferctl admin roles`: named sets of scopes."""

from __future__ import annotations

from typing import Annotated

import typer

from inferflux.cli.reach.bounds import UINT64
from inferflux.cli.reach.command import Call
from inferflux.cli.reach.flag_groups import Commands
from inferflux.cli.show.policy_tables import roles_table
from inferflux.v1 import policy_pb2

roles = Commands(help="Manage named sets of scopes, for keys.", no_args_is_help=True)

RoleName = Annotated[str, typer.Argument(metavar="ROLE", help="1-63 of a-z 0-9 _ -")]
Version = Annotated[int, typer.Option(min=0, max=UINT64, help="Only if it still has this version.")]


@roles.command("list")
def list_roles(*, call: Call) -> None:
    """List roles, with those that every InferFlux has."""
    call.policy("ListRoles", policy_pb2.ListRolesRequest(), lambda found: roles_table(found.roles))


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
    *,
    call: Call,
) -> None:
    """Make a role, or replace it; the next calls of keys that have it follow."""
    role = policy_pb2.Role(name=name, scopes=scope, models=model, description=description, version=version)
    call.policy(
        "SetRole", policy_pb2.SetRoleRequest(role=role), lambda response: roles_table([response.role])
    )


@roles.command()
def delete(name: RoleName, version: Version = 0, *, call: Call) -> None:
    """Remove a role: keys that have it lose what it gave them."""
    call.policy(
        "DeleteRole",
        policy_pb2.DeleteRoleRequest(name=name, version=version),
        f"there is no role {name} any more",
    )
