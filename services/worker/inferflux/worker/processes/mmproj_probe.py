"""The probe of a projector: a short-lived child of the worker that is the first to read its file.

    python -m inferflux.worker.processes.mmproj_probe PATH MODEL MOST_WHOLE

It checks the file, loads it with libmtmd beside the head of its model, and lays images and sounds out; at
last it encodes one. A file that breaks something breaks this process, which has bounds of time and memory. It
prints a line of JSON, what gateways need of the projector, and another line of JSON if it cannot encode;
`mmproj_file` reads them.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.process.child.memory_file import path_of
from inferflux.worker.files.mmproj_file import Projection, read_projection
from inferflux.worker.files.probes import TOO_MUCH, bound_probe

if TYPE_CHECKING:
    from inferflux.worker.engine.media.projector import Projector

CPU_S = 60
# A large projector takes longer: that it encodes is seen when its model is loaded.
ENCODING_S = 10


def main() -> int:
    path, model, most_whole = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    files = sum(file.stat().st_size for file in (path, model) if file.is_file())
    bound_probe(cpu_s=CPU_S, mapped_bytes=2 * files, computes=True)
    # What is no projector is refused without llama.cpp.
    try:
        found = read_projection(path, field="")
    except InvalidArgument as error:
        return _write({"error": error.message})
    except MemoryError:
        return _write({"error": f"{path}: {TOO_MUCH}"})
    from inferflux.worker.engine.media.projector import ProjectorError

    try:
        projector = _opened(found, model, most_whole)
    except ProjectorError as error:
        return _write({"error": f"{path}: {error}"})
    _write(
        {
            "digest": found.digest,
            "size_bytes": found.size_bytes,
            "takes_images": projector.takes_images,
            "takes_audio": projector.takes_audio,
            "skeleton_bytes": len(found.skeleton),
        },
        found.skeleton,
    )
    signal.alarm(ENCODING_S)  # which ends it
    try:
        projector.try_encoding()
    except ProjectorError as error:
        _write({"error": f"{path}: {error}"})
    return 0


def _opened(found: Projection, model_path: Path, most_whole: int) -> Projector:
    """The projector beside the head of its model, of which no weights are read.

    Raises:
        ProjectorError: it cannot be used with the model.
    """
    from inferflux.common.llama.native import first_log_error, llama
    from inferflux.common.llama.vocab import Vocab, VocabError
    from inferflux.worker.engine.media.projector import Projector, ProjectorError

    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    params.load_mode = llama.LLAMA_LOAD_MODE_NONE
    params.no_alloc = True
    model = llama.llama_model_load_from_file(str(model_path).encode(), params)
    if not model:
        raise ProjectorError(f"its model cannot be loaded: {first_log_error('llama.cpp does not take it')}")
    try:
        vocab = Vocab.load(model_path)
    except VocabError as error:
        raise ProjectorError(str(error)) from None
    with path_of(found.skeleton) as skeleton:
        return Projector(
            str(found.path),
            model,
            skeleton=str(skeleton),
            vocab=vocab,
            width=int(llama.llama_model_n_embd_inp(model)),
            most_whole=most_whole,
            threads=1,
            flash_attention=True,
            use_gpu=False,
            is_known=True,
        )


def _write(line: dict[str, Any], rest: bytes = b"") -> int:
    sys.stdout.buffer.write(json.dumps(line).encode() + b"\n" + rest)
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
