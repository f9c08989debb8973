"""Entry point of inferctl: every failure becomes one line and an exit status."""

from __future__ import annotations

import os
import sys

_INTERRUPTED = 130


def main() -> None:
    """Run inferctl. Exit status: 0, 1 for what failed, 2 for usage, 130 for Ctrl-C."""
    # gRPC writes to stderr in the middle of an answer.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        _run()
    except KeyboardInterrupt:  # also while the imports last
        sys.exit(_INTERRUPTED)


def _run() -> None:
    from inferflux.common.contract.errors import InferFluxError

    from .app import app
    from .reach.errors import CommandError, in_words

    try:
        app()
    except CommandError as error:
        sys.exit(f"inferctl: {error}")
    except InferFluxError as error:
        sys.exit(f"inferctl: {in_words(error)}")
    except UnicodeError as error:
        sys.exit(f"inferctl: {_of_bytes(error)}")
    except BrokenPipeError:
        # The reader of our output is gone; what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _of_bytes(error: UnicodeError) -> str:
    """Says which text of an argument, of standard input or of the answer cannot be passed on."""
    if isinstance(error, UnicodeEncodeError) and error.encoding != "utf-8":
        return f"the terminal's encoding, {error.encoding}, cannot show the answer: use UTF-8"
    if isinstance(error, UnicodeEncodeError):  # a surrogate stands for a byte that was none
        return f"not UTF-8: {error.object[max(0, error.start - 20) : error.end]!r}"
    return f"not UTF-8: {error}"


if __name__ == "__main__":
    main()
