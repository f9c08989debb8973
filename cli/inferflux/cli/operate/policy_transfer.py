"""`inferctl admin policy`: all that administrators have set, as one document."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from inferflux.cli.reach.bounds import read_bytes, read_stdin
from inferflux.cli.reach.client import Client
from inferflux.cli.reach.command import (
    ApiKey,
    Call,
    Endpoint,
    StateDirectory,
    make_console,
    print_json,
    with_client,
)
from inferflux.cli.reach.errors import CommandError
from inferflux.cli.reach.flag_groups import Commands
from inferflux.cli.show.policy_tables import changes_view
from inferflux.common.process.private_files import write_private
from inferflux.v1 import policy_pb2

policy = Commands(help="Export and import keys, roles, limits and guardrails.", no_args_is_help=True)

# An import changes one thing after the other.
_IMPORT_LIMIT_S = 60.0


@policy.command("export")
def export_policy(
    file: Annotated[
        Path | None, typer.Argument(help="Where to; only you may read it then. Else to stdout.")
    ] = None,
    with_hashes: Annotated[
        bool,
        typer.Option("--with-hashes", help="With hashes of secrets: an import can make keys of them."),
    ] = False,
    endpoint: Endpoint = "",
    api_key: ApiKey = "",
    state_dir: StateDirectory = None,
) -> None:
    """Write all keys without their secrets, roles, limits and guardrails as JSON."""

    async def run(client: Client) -> None:
        request = policy_pb2.ExportPolicyRequest(with_hashes=with_hashes)
        document = (await client.policy("ExportPolicy", request)).document
        text = json.dumps(MessageToDict(document, preserving_proto_field_name=True), indent=2) + "\n"
        sys.stdout.write(text) if file is None else _write(file, text)

    with_client(run, endpoint, api_key, state_dir)


@policy.command("import")
def import_policy(
    file: Annotated[Path, typer.Argument(help="As `export` writes it. `-` reads stdin.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check it, and say what would change.")] = False,
    ignore_versions: Annotated[
        bool,
        typer.Option("--ignore-versions", help="Replace what was changed since it was exported, too."),
    ] = False,
    *,
    call: Call,
) -> None:
    """Make and change what a document has. What it does not have stays. All of it is checked first."""
    data = read_stdin().encode() if str(file) == "-" else read_bytes(file)
    request = policy_pb2.ImportPolicyRequest(
        document=document_of_json(data, str(file)), dry_run=dry_run, ignore_versions=ignore_versions
    )

    async def run(client: Client) -> None:
        made = await client.policy("ImportPolicy", request, timeout_s=_IMPORT_LIMIT_S)
        print_json(made) if call.as_json else make_console().print(changes_view(made, is_dry_run=dry_run))

    call.run(run)


def document_of_json(data: bytes, path: str) -> policy_pb2.PolicyDocument:
    """The document that a file has.

    Raises:
        CommandError: it has none.
    """
    try:
        given = json.loads(data)
        if not isinstance(given, dict):
            raise CommandError(f"{path} has no policy: it is no JSON object")
        return ParseDict(given, policy_pb2.PolicyDocument())
    except (ValueError, RecursionError, ParseError) as error:
        why = str(error).partition("\n")[0]
        raise CommandError(f"{path} has no policy that can be read: {why}") from None


def _write(file: Path, text: str) -> None:
    if file.is_dir():
        raise CommandError(f"{file} is a folder")
    try:
        write_private(file, text)
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}") from None
