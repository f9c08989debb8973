"""The probe of an adapter: a short-lived child of the worker that is the first to read its file.

    python -m inferflux.worker.processes.adapter_probe PATH SCALE MODEL

It checks the file, loads it with llama.cpp and computes some tokens with it. A file that breaks something
breaks this process, which has bounds of time and memory. It prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from inferflux.worker.files.adapter_file import AdapterFileError, read_adapter_file
from inferflux.worker.files.probes import TOO_MUCH, bound_probe

CPU_S = 60
_TRIAL_TOKENS = 8
_CELLS = 256


def main() -> int:
    path, scale, model = Path(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
    files = sum(file.stat().st_size for file in (path, model) if file.is_file())
    bound_probe(cpu_s=CPU_S, mapped_bytes=2 * files, computes=True)
    try:
        digest, size = read_adapter_file(path, scale, model)
        _try_adapter(path, scale, model)
    except AdapterFileError as error:
        _write(json.dumps({"error": str(error)}))
    except MemoryError:
        _write(json.dumps({"error": f"{path}: {TOO_MUCH}"}))
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
    from inferflux.worker.engine.llama.context import Adapter, Context, ContextError, DecodeError

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
