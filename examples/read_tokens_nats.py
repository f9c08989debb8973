"""Read a token stream live, straight from NATS, beside the client that asked for it.

    .venv/bin/python examples/read_tokens_nats.py "Tell me a story."
    .venv/bin/python examples/read_tokens_nats.py --request-id ID     # follow a request of another client

Any client that may subscribe to `inferflux.v1.tokens.<tenant>.>` can read along: nothing passes the gateway,
and the worker does no more for it. Needs nats-py and the generated stubs `inferflux.v1`.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys

import nats
from ask import ask
from nats.aio.subscription import Subscription
from nats_connection import connect

from inferflux.client import InferFluxError
from inferflux.v1 import tokens_pb2


async def main() -> None:
    parser = argparse.ArgumentParser(description="Read a token stream live from NATS.")
    parser.add_argument("prompt", nargs="*", default=["Hello!"], help="what to ask (default: Hello!)")
    parser.add_argument("--model", default="", help="default: the first one that is served")
    parser.add_argument("--tenant", default="default", help="whose request it is (default: %(default)s)")
    parser.add_argument("--request-id", default="", help="follow this request instead of making one")
    parser.add_argument("--timeout", type=float, default=60, help="in seconds (default: %(default)s)")
    args = parser.parse_args()
    request_id = args.request_id or secrets.token_hex(12)

    client = nats.NATS()
    try:
        async with asyncio.timeout(args.timeout):
            await connect(client)
            # Subscribe before the request is made, so that no token is missed.
            tokens = await client.subscribe(f"inferflux.v1.tokens.{args.tenant}.{request_id}")
            await client.flush()
            reading = asyncio.create_task(read(tokens, None if args.request_id else 0))
            if not args.request_id:
                await ask(request_id, args.model, " ".join(args.prompt))
            problem = await reading
    except TimeoutError:
        sys.exit(f"not at its end after {args.timeout:g} s")
    except InferFluxError as error:
        sys.exit(f"{error.reason}: {error.message}")
    finally:
        await client.close()
    sys.exit(problem)


async def read(tokens: Subscription, next_offset: int | None) -> str | None:
    """Print a request's text, every token once, until the one chunk that ends it; returns what went wrong.

    Messages may repeat (a worker that lost its connection publishes everything again) and, after a retry, a
    worker that was replaced may still publish: `offset` and `epoch` tell. Without a `next_offset` it begins
    wherever the stream is.
    """
    epoch = 0
    async for message in tokens.messages:
        chunk = tokens_pb2.TokenChunk.FromString(message.data)
        event = chunk.WhichOneof("event")
        is_end = event in ("finished", "failed")
        if chunk.epoch < epoch or not (chunk.token_ids or is_end):
            continue
        epoch = chunk.epoch
        if next_offset is None:
            next_offset = chunk.offset
        if chunk.offset > next_offset:
            return f"\ntokens from {next_offset} on were missed: replay_tokens.py reads them"
        if chunk.offset == next_offset:
            print(chunk.text, end="", flush=True)
            next_offset += len(chunk.token_ids)
        if event == "failed":
            return f"\n{chunk.failed.reason}: {chunk.failed.message}"
        if is_end:
            print(f"\n[{next_offset} tokens read from {message.subject}]", file=sys.stderr)
            return None
    return "the subscription was closed"


if __name__ == "__main__":
    asyncio.run(main())
