"""A Python service that asks InferFlux: one streamed chat answer, with a deadline and readable errors.

    .venv/bin/python examples/chat_client.py "What is the capital of France?"
    .venv/bin/python examples/chat_client.py --resume-window 60 "Tell me a story."

With a window the request goes on when the connection is lost, and the answer is resumed where it broke off.
Without one, a lost connection cancels it.

Needs grpcio, grpcio-status and the generated stubs `inferflux.v1`. INFERFLUX_ENDPOINT and INFERFLUX_API_KEY
say where; without them it asks the stack that runs on this machine.
"""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections.abc import Iterator

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from local_stack import setting

from inferflux.v1 import (
    generation_pb2,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    tokens_pb2,
)

# The connection was lost, or the gateway.
LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
# After that: the request is not known, or not yet; or it was accepted after all.
UNSURE = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ALREADY_EXISTS)


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

    metadata = (("authorization", f"Bearer {setting('INFERFLUX_API_KEY')}"),)
    with grpc.insecure_channel(setting("INFERFLUX_ENDPOINT")) as channel:
        try:
            model = args.model or first_model(channel, metadata, args.timeout)
            request = inference_pb2.ChatRequest(
                model=model,
                messages=[inference_pb2.ChatMessage(role="user", content=" ".join(args.prompt))],
                params=generation_pb2.GenerationParams(
                    max_tokens=args.max_tokens,
                    sampling=generation_pb2.SamplingParams(temperature=0),
                ),
                resume_window_s=args.resume_window,
            )
            # The deadline goes with the request: what is still queued or running then is ended everywhere.
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            for chunk in answer(stub, request, metadata, args.timeout):
                show(chunk)
        except grpc.RpcError as error:
            sys.exit(explain(error))


def answer(
    stub: inference_pb2_grpc.InferenceServiceStub,
    request: inference_pb2.ChatRequest,
    metadata: tuple[tuple[str, str], ...],
    timeout: float,
) -> Iterator[tokens_pb2.TokenChunk]:
    """The chunks of an answer; with a resume window over as many calls as it takes, each token once."""
    request_id, offset, has_begun, is_resuming, lost_at = uuid.uuid4().hex, 0, False, False, 0.0
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        resume = inference_pb2.ResumeRequest(request_id=request_id, offset=offset)
        call = (
            stub.Resume(resume, metadata=metadata, timeout=left)
            if is_resuming
            else stub.Chat(request, metadata=(*metadata, ("x-request-id", request_id)), timeout=left)
        )
        try:
            for response in call:
                has_begun, is_resuming, lost_at = True, True, 0.0
                offset = max(offset, response.chunk.offset + len(response.chunk.token_ids))
                yield response.chunk
            return
        except grpc.RpcError as error:
            was_lost = has_begun or lost_at > 0
            lost_at = lost_at or time.monotonic()
            may_go_on = error.code() in (*LOST, *UNSURE) if was_lost else may_be_accepted(error)
            if not may_go_on or time.monotonic() - lost_at >= request.resume_window_s:
                raise
            # A lost call may have been accepted: it is sent again, under its id, only when it is not known.
            is_resuming = has_begun or error.code() != grpc.StatusCode.NOT_FOUND
            time.sleep(0.3)


def may_be_accepted(error: grpc.RpcError) -> bool:
    """Whether a request may run whose first call ended so: gRPC lost the connection, or the gateway left.

    What the gateway refuses it gives other reasons for.
    """
    return error.code() in LOST and reason_of(error) in ("", "OUTCOME_UNKNOWN", "GATEWAY_DRAINING")


def window(text: str) -> int:
    """The value of --resume-window."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return int(text)


def show(chunk: tokens_pb2.TokenChunk) -> None:
    """Print text as it comes, and what was used at the end."""
    print(chunk.text, end="", flush=True)
    if chunk.HasField("finished"):
        usage, timings = chunk.finished.usage, chunk.finished.timings
        print(
            f"\n[{usage.prompt_tokens} prompt + {usage.completion_tokens} new tokens, "
            f"{timings.prefill_ms:.0f} + {timings.decode_ms:.0f} ms]",
            file=sys.stderr,
        )
    elif chunk.HasField("failed"):
        sys.exit(f"\n{chunk.failed.reason}: {chunk.failed.message}")


def first_model(channel: grpc.Channel, metadata: tuple[tuple[str, str], ...], timeout: float) -> str:
    stub = model_pb2_grpc.ModelServiceStub(channel)
    models = stub.ListModels(model_pb2.ListModelsRequest(), metadata=metadata, timeout=timeout).models
    if not models:
        sys.exit("no model is served at present")
    return models[0].card.name


def reason_of(error: grpc.RpcError) -> str:
    """The reason that the gateway gave; "" for gRPC's own errors."""
    status, info = rpc_status.from_call(error), error_details_pb2.ErrorInfo()
    return next((info.reason for detail in (status.details if status else ()) if detail.Unpack(info)), "")


def explain(error: grpc.RpcError) -> str:
    """One line out of the status and its details: the reason, the field, when to try again."""
    if not isinstance(error, grpc.Call):
        return str(error)
    parts = [f"{error.code().name}: {error.details()}"]
    status = rpc_status.from_call(error)
    for detail in status.details if status else ():
        info, bad, retry = (
            error_details_pb2.ErrorInfo(),
            error_details_pb2.BadRequest(),
            error_details_pb2.RetryInfo(),
        )
        if detail.Unpack(info):
            parts.append(f"reason {info.reason}")
        elif detail.Unpack(bad):
            parts += [f"field {violation.field}" for violation in bad.field_violations]
        elif detail.Unpack(retry):
            parts.append(f"try again in {retry.retry_delay.ToMilliseconds()} ms")
    return ", ".join(parts)


if __name__ == "__main__":
    main()
