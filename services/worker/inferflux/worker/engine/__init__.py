"""The engine: a process of its own with one thread that drives llama.cpp.

core      the step: plan, decode, sample, report
sequence  one request on board
planner   which tokens go into the next batch            (pure)
budget    how much prefill a step may carry               (pure)
pressure  who leaves the KV cache when it is full          (pure)
memory    sequence ids, KV cells and host memory of the sequences
kv        who fills how many KV cells                     (pure)
swap      whose state host memory keeps                   (pure)
sampling  logits to a token id                            (pure)
text      token bytes to whole characters, stop strings   (pure)
native    a loaded model: the streams' context, and the one for prompts
apart     prompts in a context of their own, and copying them to the streams'
context   a llama.cpp context: what it decodes and what it holds
state     what a context writes of a sequence, with and without flash attention  (pure)
batch     the tokens of a step, as llama.cpp takes them
"""
