"""Error of a command that could not do what was asked."""

from __future__ import annotations

from inferflux.common.calls.grpc_metadata import GUARDRAIL
from inferflux.common.contract.callers.rate_limits import duration
from inferflux.common.contract.errors import InferFluxError, InvalidArgument, ResourceExhausted

# Flags of the commands that fill a field of another name.
_FLAGS = {"host_id": "--host"}
INTERRUPTED = 130
"""The exit status of a command that Ctrl-C ended, or whose answer was cancelled."""


class CommandError(Exception):
    """Ends a command: its message goes to stderr as it is, and the exit status is 1."""


def in_words(error: InferFluxError) -> str:
    """An error in a line: its message, and what that leaves out of field, rule and time of a next try. Its
    notes follow, each in a line.
    """
    said = [error.message]
    if isinstance(error, InvalidArgument) and error.field and error.field not in error.message:
        said.append(f" ({_FLAGS.get(error.field, error.field)})")
    if error.reason == "UNKNOWN_MODEL":
        said.append("; `inferctl models` lists them")
    if rule := error.headers.get(GUARDRAIL):
        said.append(f" ({rule})")
    if isinstance(error, ResourceExhausted) and (error.retry_delay_s or 0) >= 1:
        said.append(f"; try again in {duration(round(1000 * (error.retry_delay_s or 0)))}")
    return "\n".join(["".join(said), *getattr(error, "__notes__", ())])
