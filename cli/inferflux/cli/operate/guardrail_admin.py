"""`inferctl admin guardrails`: which texts prompts and answers may not have."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from inferflux.cli.reach.bounds import UINT32, UINT64, read_bytes, read_stdin
from inferflux.cli.reach.client import Client
from inferflux.cli.reach.command import Call, print_json
from inferflux.cli.reach.flag_groups import Commands
from inferflux.cli.show.policy_tables import guardrails_table, guardrails_view
from inferflux.common.text.guardrails.lookalikes import LookAlikes
from inferflux.v1 import guardrails_pb2

from .guardrail_rules import rules_of_json, texts_of

_LOOK_ALIKES = {
    None: guardrails_pb2.LOOK_ALIKES_UNSPECIFIED,
    LookAlikes.MIXED: guardrails_pb2.LOOK_ALIKES_MIXED,
    LookAlikes.ANY: guardrails_pb2.LOOK_ALIKES_ANY,
    LookAlikes.NONE: guardrails_pb2.LOOK_ALIKES_NONE,
}

guardrails = Commands(help="Set which texts prompts and answers may not have.", no_args_is_help=True)

Tenant = Annotated[str, typer.Option(help="Whose requests it is for. Else every tenant's.")]
Model = Annotated[str, typer.Option("--model", "-m", help="The model it is for. Else every model.")]
Version = Annotated[int, typer.Option(min=0, max=UINT64, help="Only if the set still has this version.")]


@guardrails.command("list")
def list_guardrails(*, call: Call) -> None:
    """List all sets of rules, without their texts."""
    call.policy(
        "ListGuardrails",
        guardrails_pb2.ListGuardrailsRequest(),
        lambda found: guardrails_table(found.guardrails),
    )


@guardrails.command()
def get(tenant: Tenant = "", model: Model = "", *, call: Call) -> None:
    """Show one set with all of its texts. `--json` prints what `set --rules FILE` takes."""

    async def run(client: Client) -> None:
        request = guardrails_pb2.GetGuardrailsRequest(tenant=tenant, model=model)
        found = (await client.policy("GetGuardrails", request)).guardrails
        call.show(found, guardrails_view)

    call.run(run)


@guardrails.command("set")
def set_guardrails(
    tenant: Tenant = "",
    model: Model = "",
    block: Annotated[
        list[str] | None,
        typer.Option(help="A text, in any case and spelling, within words too; several times."),
    ] = None,
    block_word: Annotated[
        list[str] | None, typer.Option(help="As above, but as a word of its own; several times.")
    ] = None,
    blocklist: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A file of such texts, one a line.")
    ] = None,
    wordlist: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A file of such words, one a line.")
    ] = None,
    pattern: Annotated[
        list[str] | None, typer.Option(help="A regular expression of RE2; several times.")
    ] = None,
    max_characters: Annotated[int, typer.Option(min=0, max=UINT32, help="Of a prompt; 0: any number.")] = 0,
    max_tokens: Annotated[int, typer.Option(min=0, max=UINT32, help="Of a prompt; 0: any number.")] = 0,
    stream: Annotated[
        bool, typer.Option("--stream/--no-stream", help="Hold answers to the texts and patterns too.")
    ] = False,
    stream_window: Annotated[
        int, typer.Option(min=0, max=UINT32, help="Characters of an answer held back for patterns; 0: 128.")
    ] = 0,
    look_alikes: Annotated[
        LookAlikes | None,
        typer.Option(
            help="Where letters that look like those of a text count as these: in words that mix scripts "
            "(the default), anywhere, nowhere."
        ),
    ] = None,
    ignore_accents: Annotated[
        bool,
        typer.Option("--ignore-accents/--no-ignore-accents", help="A letter with an accent is as without."),
    ] = False,
    rules: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="All of it as JSON, as `get --json` prints it."),
    ] = None,
    version: Version = 0,
    *,
    call: Call,
) -> None:
    """Make a set of rules, or replace it whole. It holds for new requests within a quarter of a second."""
    given = guardrails_pb2.GuardrailRules(
        blocked=[*_blocked(block, blocklist), *_blocked(block_word, wordlist, is_word=True)],
        patterns=pattern,
        max_characters=max_characters,
        max_tokens=max_tokens,
        guards_stream=stream,
        stream_window=stream_window,
        look_alikes=_LOOK_ALIKES[look_alikes],
        ignores_accents=ignore_accents,
    )
    if rules is not None:
        if given != guardrails_pb2.GuardrailRules():
            raise typer.BadParameter("--rules has all rules: give no others beside it")
        given = rules_of_json(read_bytes(rules), str(rules))
    wanted = guardrails_pb2.Guardrails(tenant=tenant, model=model, rules=given, version=version)

    request = guardrails_pb2.SetGuardrailsRequest(guardrails=wanted)
    call.policy("SetGuardrails", request, lambda made: guardrails_table([made.guardrails]))


@guardrails.command()
def delete(tenant: Tenant = "", model: Model = "", version: Version = 0, *, call: Call) -> None:
    """Remove one set; the others still hold."""

    request = guardrails_pb2.DeleteGuardrailsRequest(tenant=tenant, model=model, version=version)
    call.policy("DeleteGuardrails", request, f"there are no guardrails {tenant}/{model} any more")


@guardrails.command()
def check(
    text: Annotated[str, typer.Argument(help="A prompt. `-` reads it from stdin.")],
    tenant: Tenant = "",
    model: Model = "",
    tokens: Annotated[int, typer.Option(min=0, max=UINT32, help="Of the prompt, for limits of tokens.")] = 0,
    *,
    call: Call,
) -> None:
    """Say whether a prompt would pass, and if not, which rule it breaks: exit status 3 then."""
    prompt = read_stdin() if text == "-" else text
    request = guardrails_pb2.CheckGuardrailsRequest(tenant=tenant, model=model, text=prompt, tokens=tokens)
    passes = False

    async def run(client: Client) -> None:
        nonlocal passes
        answer = await client.policy("CheckGuardrails", request)
        passes = not answer.HasField("finding")
        print_json(answer) if call.as_json else sys.stdout.write(f"{_said(answer)}\n")

    call.run(run)
    if not passes:
        raise typer.Exit(3)


def _said(answer: guardrails_pb2.CheckGuardrailsResponse) -> str:
    if not answer.HasField("finding"):
        return "it passes"
    found = answer.finding
    index = f"[{found.index}]" if found.kind in ("blocked", "pattern") else ""
    return f"it is refused: {found.tenant}/{found.model} {found.kind}{index}"


def _blocked(
    texts: Sequence[str] | None, file: Path | None, *, is_word: bool = False
) -> list[guardrails_pb2.BlockedText]:
    listed = texts_of(read_bytes(file), str(file)) if file is not None else []
    return [guardrails_pb2.BlockedText(text=text, is_word=is_word) for text in [*(texts or ()), *listed]]
