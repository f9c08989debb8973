"""A request whose answer goes by unread: for the examples that read its tokens another way."""

from __future__ import annotations

import sys

from local_stack import setting

from inferflux.client import AsyncClient


async def ask(request_id: str, model: str, prompt: str) -> None:
    """Make a chat request under an id of our own, and stay until it ends: hanging up would cancel it.

    Without a model, the first one that is served is asked.

    Raises:
        InferFluxError: it failed.
    """
    async with AsyncClient(setting("INFERFLUX_ENDPOINT"), api_key=setting("INFERFLUX_API_KEY")) as client:
        if not model:
            served = [one.card.name for one in await client.models() if one.workers]
            model = served[0] if served else sys.exit("no model is served at present")
        await client.chat(prompt, model=model, max_tokens=200, request_id=request_id).text()
