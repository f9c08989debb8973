"""llama.cpp's own server, as xllamacpp packs it, on loopback until it is ended.

Run by the interpreter of the peers' own environment, which has nothing else: see peers.py.
"""

import argparse
import signal

import xllamacpp


def main() -> None:
    """Start the server with InferFlux's own context settings, and stay."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-file", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--cells", type=int, required=True, help="KV cells that all slots share")
    parser.add_argument("--no-flash-attn", action="store_true")
    options = parser.parse_args()

    params = xllamacpp.CommonParams()
    params.model.path = options.model_file
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.n_parallel = options.slots
    params.kv_unified = True
    params.n_ctx = options.cells
    params.n_batch = 2048
    params.n_ubatch = 512
    kind = "DISABLED" if options.no_flash_attn else "ENABLED"
    params.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{kind}")
    params.fit_params = False
    # Every prompt is computed: no reuse within a slot, none from another slot, none kept in host memory.
    params.cache_prompt = False
    params.cache_idle_slots = False
    params.slot_prompt_similarity = 0.0
    params.cache_ram_mib = 0
    params.n_ctx_checkpoints = 0
    params.ui = False
    params.verbosity = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, xllamacpp.get_system_info(), flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
