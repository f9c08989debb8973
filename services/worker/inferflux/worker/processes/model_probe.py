"""The probe: a short-lived child of the worker that is the first to read a model file.

    python -m inferflux.worker.processes.model_probe PATH [CHAT_TEMPLATE]

It reads the head of the file, checks its fields, and loads and uses its vocabulary. A file that breaks
something breaks this process, which has bounds of time and memory. It prints one line of JSON, then the
tokenizer; `model_file` reads them.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from inferflux.common.process.child.memory_file import path_of
from inferflux.common.process.machine.free_memory import at_most
from inferflux.common.text.chat_templates.probe import ToolSupport, support_of
from inferflux.worker.files.chat_template_file import with_template
from inferflux.worker.files.model_file import ModelFile, ModelFileError, read_model_file
from inferflux.worker.files.probes import TOO_MUCH, bound_probe

if TYPE_CHECKING:
    from inferflux.common.llama.vocab import Vocab

CPU_S = 30
# For rendering the chat template some times, of processor time.
TEMPLATE_S = 2.0


def main() -> int:
    bound_probe(cpu_s=CPU_S)
    try:
        model = read_model_file(Path(sys.argv[1]))
        if len(sys.argv) > 2:
            model = with_template(model, Path(sys.argv[2]))
        support = _try_tokenizer(model)
    except ModelFileError as error:
        _write(json.dumps({"error": str(error)}), b"")
    except MemoryError:
        _write(json.dumps({"error": f"{sys.argv[1]}: {TOO_MUCH}"}), b"")
    else:
        facts = {
            "path": str(model.path),
            "digest": model.digest,
            "size_bytes": model.size_bytes,
            "architecture": model.architecture,
            "name": model.name,
            "context_length": model.context_length,
            "facts": asdict(
                replace(
                    model.facts,
                    can_call_tools=support is not None and support.is_usable,
                    has_generic_tools=support is not None and support.is_usable and not support.shows_tools,
                )
            ),
        }
        _write(json.dumps(facts), model.tokenizer)
    return 0


class _TooLongError(BaseException):
    """Raised in the midst of a template: none catches it."""


def _try_tokenizer(model: ModelFile) -> ToolSupport | None:
    """Load the tokenizer as gateways do, and use it. Returns what its chat template does with tools."""
    # What is no GGUF is refused without llama.cpp.
    from inferflux.common.llama.vocab import Vocab, VocabError, memory_to_load

    with path_of(model.tokenizer) as path:
        try:
            with at_most(memory_to_load(len(model.tokenizer))):
                vocab = Vocab.load(path)
                vocab.try_out()
                support = _support_of(vocab)
                vocab.close()
        except VocabError as error:
            why = str(error).removeprefix(f"{path.name}: ")
            raise ModelFileError(f"{model.path}: the vocabulary cannot be used: {why}") from None
    return support


def _support_of(vocab: Vocab) -> ToolSupport | None:
    """Find out what its chat template does with tools. One that does not end within its time does nothing."""
    source = vocab.tool_template or vocab.chat_template
    if source is None:
        return None
    signal.signal(signal.SIGVTALRM, _raise_too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, TEMPLATE_S)
    try:
        return support_of(source, vocab.template_tokens)
    except (_TooLongError, MemoryError):
        return None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _raise_too_long(_number: int, _frame: object) -> NoReturn:
    raise _TooLongError


def _write(line: str, rest: bytes) -> None:
    sys.stdout.buffer.write(line.encode() + b"\n" + rest)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
