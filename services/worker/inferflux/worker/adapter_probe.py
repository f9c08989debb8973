"""The probe of an adapter: a short-lived child of the worker that is the first to read its file.

    python -m inferflux.worker.adapter_probe PATH SCALE MODEL

It checks the file, loads it with llama.cpp and computes some tokens with it. A file that breaks something
breaks this process, which has bounds of time and memory. It prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path

import numpy as np

from inferflux.common.parent_death import exit_with_parent
from inferflux.common.process_limits import bound

from .adapter_file import AdapterFileError, read_adapter_file

# Address space beside both files.
MEMORY_BYTES = 3 << 30
CPU_S = 60
# It gives way to engines.
_NICENESS = 10
_TRIAL_TOKENS = 8
_CELLS = 256


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_parent(signal.SIGKILL)
    path, scale, model = Path(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
    files = sum(file.stat().st_size for file in (path, model) if file.is_file())
    bound("RLIMIT_AS", MEMORY_BYTES + 2 * files, resource.RLIM_INFINITY)
    bound("RLIMIT_CPU", CPU_S, CPU_S)
    bound("RLIMIT_CORE", 0, 0)
    os.nice(_NICENESS)
    try:
        digest, size = read_adapter_file(path, scale, model)
        _try_adapter(path, scale, model)
    except AdapterFileError as error:
        _write(json.dumps({"error": str(error)}))
    except MemoryError:
        _write(json.dumps({"error": f"{path}: reading it takes more than {MEMORY_BYTES >> 30} GiB"}))
    else:
        _write(json.dumps({"digest": digest, "size_bytes": size}))
    return 0


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _try_adapter(path: Path, scale: float, model_path: Path) -> None:
    """Compute some tokens from all over the vocabulary with the adapter."""
    # What does not fit by its head is refused without llama.cpp.
    from inferflux.common.llama.native import first_log_error, llama, log_errors

    from .engine.context import Adapter, Context, ContextError, DecodeError

    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    params.use_extra_bufts = False  # weights stay in the file: nothing of the model is copied
    model = llama.llama_model_load_from_file(str(model_path).encode(), params)
    if not model:
        raise AdapterFileError(f"{model_path}: {first_log_error('the model cannot be loaded')}")
    log_errors.clear()
    handle = llama.llama_adapter_lora_init(model, str(path).encode())
    if not handle:
        raise AdapterFileError(f"{path}: {first_log_error('llama.cpp does not take it')}")
    vocabulary = int(llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model)))
    tokens = np.linspace(0, vocabulary - 1, min(_TRIAL_TOKENS, vocabulary)).astype(np.int32)
    try:
        context = Context(
            model,
            cells=_CELLS,
            sequences=1,
            batch_tokens=_TRIAL_TOKENS,
            physical_batch=_TRIAL_TOKENS,
            flash_attention=True,
            threads=1,
            vocabulary=vocabulary,
        )
        context.use_adapter(Adapter(handle, scale))
        logits = context.decode_tokens(tokens, seq_id=0, position=0)
    except (ContextError, DecodeError) as error:
        raise AdapterFileError(f"{path}: the model cannot compute with it: {error}") from None
    if not np.isfinite(logits).all():
        raise AdapterFileError(f"{path}: the model gives no finite logits with it, at scale {scale:g}")


if __name__ == "__main__":
    sys.exit(main())
