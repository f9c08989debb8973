"""The stack that suites call: the demo model, or another, with an embedding model and a reranker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import gguf
from harness.client import Client
from harness.embedding_models import minilm_gguf, tiny_bert

from inferflux.cli.stack import Stack, StackOptions
from inferflux.v1 import model_pb2
from tools.minilm import minilm_folder

_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Served:
    """Where it is.

    Attributes:
        models: names by what they are for.
    """

    url: str
    key: str
    endpoint: str
    models: dict[str, str] = field(default_factory=dict)


@asynccontextmanager
async def served(model: Path, folder: Path) -> AsyncIterator[Served]:
    """A stack on free ports, ended with the context. Its other models are made in `folder`."""
    files = {"rerank": tiny_bert(folder / "ranker.gguf", pooling=gguf.PoolingType.RANK)}
    if minilm_folder() is not None:
        files["embedding"] = minilm_gguf(folder)
    async with Stack(StackOptions(model=model, slots=4)) as stack:
        client = Client(stack.endpoint, stack.api_key)
        for purpose, path in files.items():
            request = model_pb2.LoadModelRequest(path=str(path), name=purpose)
            await client.models.LoadModel(request, metadata=client.metadata())
            await _until_ready(client, purpose)
        await client.close()
        names = {"chat": stack.model_name} | {purpose: purpose for purpose in files}
        yield Served(stack.http_url, stack.api_key, stack.endpoint, names)


async def _until_ready(client: Client, name: str) -> None:
    async with asyncio.timeout(_WAIT_S):
        while True:
            answer = await client.models.ListModels(model_pb2.ListModelsRequest(), metadata=client.metadata())
            if any(one.card.name == name and one.workers for one in answer.models):
                return
            await asyncio.sleep(0.1)
