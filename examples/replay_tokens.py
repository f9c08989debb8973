"""Read a request's tokens late: from any offset, out of the TOKENS stream, after it has ended.

    .venv/bin/python examples/replay_tokens.py "Count from 1 to 10."
    .venv/bin/python examples/replay_tokens.py --request-id ID --offset 5

JetStream keeps what was published on the token subjects for some minutes (INFERFLUX_TOKENS_MAX_AGE_S), so
a reader that comes late, or comes back, misses nothing. Needs nats-py and the stubs `inferflux.v1`.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys

import nats
from ask import ask
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig
from nats_connection import connect

from inferflux.client import InferFluxError
from inferflux.v1 import tokens_pb2

STREAM = "INFERFLUX_TOKENS"


async def main() -> None:
    parser = argparse.ArgumentParser(description="Read a request's tokens after the fact.")
    parser.add_argument("prompt", nargs="*", default=["Hello!"], help="what to ask (default: Hello!)")
    parser.add_argument("--model", default="", help="default: the first one that is served")
    parser.add_argument("--tenant", default="default", help="whose request it is (default: %(default)s)")
    parser.add_argument("--request-id", default="", help="read this request instead of making one")
    parser.add_argument("--offset", type=int, default=0, help="tokens to skip (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=60, help="in seconds (default: %(default)s)")
    args = parser.parse_args()
    request_id = args.request_id or secrets.token_hex(12)

    client = nats.NATS()
    try:
        async with asyncio.timeout(args.timeout):
            await connect(client)
            if not args.request_id:
                await ask(request_id, args.model, " ".join(args.prompt))
            subject = f"inferflux.v1.tokens.{args.tenant}.{request_id}"
            problem = await replay(client.jetstream(), subject, args.offset)
    except TimeoutError:
        sys.exit(f"nothing more of {request_id} came in {args.timeout:g} s")
    except InferFluxError as error:
        sys.exit(f"{error.reason}: {error.message}")
    finally:
        await client.close()
    sys.exit(problem)


async def replay(stream: JetStreamContext, subject: str, offset: int) -> str | None:
    """Print the text of every token from `offset` on, once, until the chunk that ends the request; returns
    what went wrong.

    A chunk that begins before `offset` and ends after it is skipped as a whole: a text cannot be cut
    at a token.
    """
    # A name: only then NATS sees that the consumer is for this subject, and lets a tenant's user make it.
    config = ConsumerConfig(name=secrets.token_hex(8))
    subscription = await stream.subscribe(subject, stream=STREAM, ordered_consumer=True, config=config)
    try:
        next_offset, epoch = offset, 0
        async for message in subscription.messages:
            chunk = tokens_pb2.TokenChunk.FromString(message.data)
            event = chunk.WhichOneof("event")
            is_end = event in ("finished", "failed")
            if chunk.epoch < epoch or not (chunk.token_ids or is_end):
                continue
            epoch = chunk.epoch
            if chunk.offset >= next_offset:
                print(chunk.text, end="", flush=True)
                next_offset = chunk.offset + len(chunk.token_ids)
            if event == "failed":
                return f"\n{chunk.failed.reason}: {chunk.failed.message}"
            if is_end:
                print(f"\n[replayed up to token {next_offset} from {STREAM}]", file=sys.stderr)
                return None
        return "the subscription was closed"
    finally:
        await subscription.unsubscribe()


if __name__ == "__main__":
    asyncio.run(main())
