"""A Python service that asks InferFlux: one streamed chat answer, with a deadline and readable errors.

    .venv/bin/python examples/chat_client.py "What is the capital of France?"
    .venv/bin/python examples/chat_client.py --resume-window 60 "Tell me a story."

With a window the request goes on when the connection is lost, and the answer is resumed where it broke off.
Without one, a lost connection cancels it.

Needs `inferflux-client`. INFERFLUX_ENDPOINT and INFERFLUX_API_KEY say where; without them it asks the stack
that runs on this machine.
"""

from __future__ import annotations

import argparse
import sys

from local_stack import setting

from inferflux.client import Client, InferFluxError, InvalidArgument, Stream


def main() -> None:
    parser = argparse.ArgumentParser(description="Stream one chat answer from InferFlux.")
    parser.add_argument("prompt", nargs="*", default=["Hello!"], help="what to say (default: Hello!)")
    parser.add_argument("--model", default="", help="default: the first one that is served")
    parser.add_argument("--max-tokens", type=int, default=200, help="longest answer (default: %(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=60, help="deadline in seconds (default: %(default)s)"
    )
    parser.add_argument(
        "--resume-window",
        type=window,
        default=0,
        metavar="SECONDS",
        help="how long the request goes on without a connection, at most what the gateway allows "
        "(default: %(default)s, it is cancelled)",
    )
    args = parser.parse_args()
    try:
        with Client(setting("INFERFLUX_ENDPOINT"), api_key=setting("INFERFLUX_API_KEY")) as client:
            # The deadline goes with the request: what is still queued or running then is ended everywhere.
            stream = client.chat(
                " ".join(args.prompt),
                model=args.model or first_model(client),
                max_tokens=args.max_tokens,
                temperature=0,
                timeout_s=args.timeout,
                resume_window_s=args.resume_window,
            )
            show(stream)
    except InferFluxError as error:
        sys.exit(explain(error))


def window(text: str) -> int:
    """The value of --resume-window."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return int(text)


def show(stream: Stream) -> None:
    """Print text as it comes, and what was used at the end."""
    for chunk in stream:
        print(chunk.text, end="", flush=True)
    if stream.finished is not None:
        usage, timings = stream.finished.usage, stream.finished.timings
        print(
            f"\n[{usage.prompt_tokens} prompt + {usage.completion_tokens} new tokens, "
            f"{timings.prefill_ms:.0f} + {timings.decode_ms:.0f} ms]",
            file=sys.stderr,
        )


def first_model(client: Client) -> str:
    served = [model.card.name for model in client.models() if model.workers]
    return served[0] if served else sys.exit("no model is served at present")


def explain(error: InferFluxError) -> str:
    """One line: the reason, the field, when to try again."""
    parts = [error.message, f"reason {error.reason}"]
    if isinstance(error, InvalidArgument) and error.field:
        parts.append(f"field {error.field}")
    if error.retry_delay_s is not None:
        parts.append(f"try again in {error.retry_delay_s:g} s")
    return ", ".join(parts)


if __name__ == "__main__":
    main()
