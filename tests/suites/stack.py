"""The stack that suites call: the demo model, or another, with models that embed and one that ranks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import gguf
from harness.client import Client
from harness.embedding_models import minilm_gguf, tiny_bert
from harness.gguf_files import changed
from harness.projectors import picture, tiny_projector

from inferflux.cli.stack import Stack, StackOptions
from inferflux.v1 import model_pb2
from tools.minilm import minilm_folder

_WAIT_S = 300.0
# For a busy machine, and pictures that are fetched from this one.
_ENV = {
    "INFERFLUX_GATEWAY_POLICY_TIMEOUT_S": "30",
    "INFERFLUX_POLICY_STORE_TIMEOUT_S": "10",
    "INFERFLUX_GATEWAY_IMAGE_NETWORKS": "127.0.0.1",
}
# Tokens: of the model with a small one.
SMALL_CONTEXT = 256


@dataclass(frozen=True, slots=True)
class Served:
    """Where it is.

    Attributes:
        models: names by what they are for.
        on_demand: fields of a LoadModelRequest, by what a test needs a model for.
    """

    url: str
    key: str
    endpoint: str
    models: dict[str, str] = field(default_factory=dict)
    on_demand: dict[str, dict[str, str]] = field(default_factory=dict)


@asynccontextmanager
async def served(model: Path, folder: Path) -> AsyncIterator[Served]:
    """A stack on free ports, ended with the context. Its other models are made in `folder`."""
    files = {"rerank": tiny_bert(folder / "ranker.gguf", pooling=gguf.PoolingType.RANK)}
    if minilm_folder() is not None:
        files["embedding"] = minilm_gguf(folder)
        last = changed(files["embedding"], {"bert.pooling_type": int(gguf.PoolingType.LAST)})
        files["embedding-last"] = _written(folder / "last.gguf", last)
    async with Stack(StackOptions(model=model, slots=4, env=_ENV)) as stack:
        client = Client(stack.endpoint, stack.api_key)
        for purpose, path in files.items():
            request = model_pb2.LoadModelRequest(path=str(path), name=purpose)
            await client.models.LoadModel(request, metadata=client.metadata())
            await _until_ready(client, purpose)
        await client.close()
        names = {"chat": stack.model_name} | {purpose: purpose for purpose in files}
        yield Served(stack.http_url, stack.api_key, stack.endpoint, names, _on_demand(model, folder))


def _on_demand(model: Path, folder: Path) -> dict[str, dict[str, str]]:
    """The same model with eyes, with a small context, and with tokens to fill gaps."""
    fields = gguf.GGUFReader(model).fields
    architecture = fields["general.architecture"].contents()
    width = int(fields[f"{architecture}.embedding_length"].contents())
    last = len(fields["tokenizer.ggml.tokens"].data) - 8
    gaps = {f"tokenizer.ggml.fim_{name}_token_id": last + i for i, name in enumerate(("pre", "suf", "mid"))}
    small = {f"{architecture}.context_length": SMALL_CONTEXT}
    return {
        "chat": {"path": str(model.resolve())},
        "picture": {"path": str(_written(folder / "picture.png", picture()))},
        "vision": {
            "path": str(model.resolve()),
            "mmproj_path": str(_written(folder / "projector.gguf", tiny_projector(width).data())),
        },
        "small": {"path": str(_written(folder / "small.gguf", changed(model, small)))},
        "infill": {"path": str(_written(folder / "infill.gguf", changed(model, gaps)))},
    }


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


async def _until_ready(client: Client, name: str) -> None:
    async with asyncio.timeout(_WAIT_S):
        while True:
            answer = await client.models.ListModels(model_pb2.ListModelsRequest(), metadata=client.metadata())
            if any(one.card.name == name and one.workers for one in answer.models):
                return
            await asyncio.sleep(0.1)
