"""Greedy and top-k samplers of llama.cpp in its graph against ours after it: `python -m benchmarks.device_sampling F`.

Prints medians of the milliseconds of a step with its choice of tokens, twice each, in turn, and how many
sequences got other tokens than from the host.
"""

import ctypes
import statistics
import sys
import time

import llama_cpp as llama
import numpy as np

STEPS, PROMPT = 60, 4
KINDS = ("host", "greedy", "top_k")


def context(model, rows, kind):
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_seq_max, params.n_batch, params.kv_unified = 4096, rows, 512, True
    params.n_threads = params.n_threads_batch = 2
    configs = (llama.llama_sampler_seq_config * rows)()
    if kind != "host":
        for seq_id in range(rows):
            chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
            greedy = llama.llama_sampler_init_greedy() if kind == "greedy" else llama.llama_sampler_init_top_k(40)
            llama.llama_sampler_chain_add(chain, greedy)
            configs[seq_id].seq_id, configs[seq_id].sampler = seq_id, ctypes.cast(chain, ctypes.c_void_p)
        params.samplers, params.n_samplers = configs, rows
    return llama.llama_init_from_model(model, params)


def chosen(ctx, row, kind, words):
    if kind == "greedy":
        return llama.llama_get_sampled_token_ith(ctx, row)
    if kind == "top_k":
        shape = (llama.llama_get_sampled_candidates_count_ith(ctx, row),)
        ids = np.ctypeslib.as_array(llama.llama_get_sampled_candidates_ith(ctx, row), shape)
        return int(ids[np.ctypeslib.as_array(llama.llama_get_sampled_logits_ith(ctx, row), shape).argmax()])
    return int(np.ctypeslib.as_array(llama.llama_get_logits_ith(ctx, row), (words,)).argmax())


def run(model, rows, kind):
    words = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    ctx, batch = context(model, rows, kind), llama.llama_batch_init(512, 0, 1)
    prompts = np.random.default_rng(1).integers(words // 4, words // 2, (rows, PROMPT)).tolist()
    answers, times = [[] for _ in range(rows)], []

    def put(i, token, position, seq_id, has_logits):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
        batch.seq_id[i][0], batch.logits[i] = seq_id, has_logits

    for seq_id, prompt in enumerate(prompts):
        for at, token in enumerate(prompt):
            put(seq_id * PROMPT + at, token, at, seq_id, at == PROMPT - 1)
    batch.n_tokens, last = rows * PROMPT, [seq_id * PROMPT + PROMPT - 1 for seq_id in range(rows)]
    for step in range(STEPS):
        began = time.perf_counter()
        assert llama.llama_decode(ctx, batch) == 0
        llama.llama_synchronize(ctx)
        for answer, row in zip(answers, last, strict=True):
            answer.append(chosen(ctx, row, kind, words))
        times.append(time.perf_counter() - began)
        for seq_id, answer in enumerate(answers):
            put(seq_id, answer[-1], PROMPT + step, seq_id, True)
        batch.n_tokens, last = rows, list(range(rows))
    llama.llama_free(ctx)
    return statistics.median(times[5:]) * 1e3, answers


def main():
    quiet = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(quiet, None)
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(sys.argv[1].encode(), llama.llama_model_default_params())
    for rows in (1, 8, 32):
        runs = [(kind, *run(model, rows, kind)) for _ in range(2) for kind in KINDS]
        same = runs[0][2]
        for kind in KINDS:
            of_kind = [(ms, answers) for name, ms, answers in runs if name == kind]
            others = sum(a != b for _, answers in of_kind for a, b in zip(answers, same, strict=True))
            print(f"{rows} rows, {kind}: {', '.join(f'{ms:.2f}' for ms, _ in of_kind)} ms, {others} differ", flush=True)


if __name__ == "__main__":
    main()
