"""`inferctl embed` and `rerank`."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape

from inferflux.cli.reach.bounds import UINT32, read_stdin
from inferflux.cli.reach.client import Client
from inferflux.cli.reach.command import Call, make_console, print_json
from inferflux.cli.reach.errors import CommandError
from inferflux.cli.show.rows import make_table
from inferflux.v1 import embedding_pb2, model_pb2

Model = Annotated[str, typer.Option("--model", "-m", help="Else the first one that can.")]
Truncate = Annotated[
    bool, typer.Option("--truncate", help="Cut what is longer than the model takes, instead of refusing it.")
]


def embed(
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT...", help="Else the lines of standard input.")
    ] = None,
    model: Model = "",
    dimensions: Annotated[
        int | None, typer.Option(min=1, max=UINT32, help="The first numbers of each vector alone.")
    ] = None,
    truncate: Truncate = False,
    *,
    call: Call,
) -> None:
    """Print the vector of each text, a line of JSON each."""
    given = texts or [line.rstrip("\n") for line in io.StringIO(read_stdin())]

    async def run(client: Client) -> None:
        name = model or await _first(client, model_pb2.MODEL_ROLE_EMBEDDING, "embeds")
        request = embedding_pb2.EmbedRequest(model=name, truncate=truncate, dimensions=dimensions)
        for text in given:
            request.inputs.add(text=text)
        response = await client.embed(request)
        if call.as_json:
            print_json(response)
            return
        for each in response.embeddings:
            sys.stdout.write(json.dumps([round(value, 7) for value in each.values]) + "\n")

    call.run(run)


def rerank(
    query: Annotated[str, typer.Argument(help="What the documents are to answer.")],
    documents: Annotated[
        list[str] | None, typer.Argument(metavar="DOCUMENT...", help="Else the lines of standard input.")
    ] = None,
    model: Model = "",
    top_n: Annotated[int | None, typer.Option(min=1, max=UINT32, help="The best ones alone.")] = None,
    truncate: Truncate = False,
    *,
    call: Call,
) -> None:
    """Print documents by how well they answer a query, the best first."""
    given = documents or [line.rstrip("\n") for line in io.StringIO(read_stdin())]

    async def run(client: Client) -> None:
        name = model or await _first(client, model_pb2.MODEL_ROLE_RERANK, "ranks")
        response = await client.rerank(
            embedding_pb2.RerankRequest(
                model=name, query=query, documents=given, top_n=top_n, truncate=truncate
            )
        )
        if call.as_json:
            print_json(response)
        else:
            _show(response, given)

    call.run(run)


def _show(response: embedding_pb2.RerankResponse, documents: Sequence[str]) -> None:
    table = make_table(">score", ">number", "document")
    for result in response.results:
        table.add_row(f"{result.score:.4f}", str(result.index), escape(documents[result.index]))
    make_console().print(table)


async def _first(client: Client, role: model_pb2.ModelRole.ValueType, what: str) -> str:
    """Raises:
    CommandError: no model has the role.
    """
    for model in await client.models():
        if model.card.role == role:
            return model.card.name
    raise CommandError(f"no model {what}: inferctl models load FILE")
