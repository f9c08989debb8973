"""The engine: a process of its own with one thread that drives llama.cpp.

core      the step: plan, decode, sample, report
sequence  one resident request, and its phase
planner   which tokens go into the next batch            (pure)
budget    how much prefill a step may carry               (pure)
pressure  who leaves the KV cache when it is full          (pure)
memory    sequence ids and KV cells of the sequences
saved     saving sequences to the tiers below the KV cache, and restoring them
kv        who fills how many KV cells, and who shares them (pure)
kv_types  in what types keys and values are kept          (pure)
fit       how many KV cells fit into memory               (pure)
ledger_check  whether llama.cpp has what was counted       (pure)
compaction  when filled cells are moved together           (pure)
seq_ids   sequence ids and their cells
radix     who holds the longest prefix of a prompt        (pure)
prefix_cache  cached prefixes, and what is evicted of them
rent      how many cached cells are worth their cost      (pure)
sampling  a row of logits to a token id                  (pure)
sampling_rows  the same for the rows of a step together   (pure)
logprobs  logarithms of probabilities                     (pure)
speculation  how many tokens are drafted for whom        (pure)
ngram     drafts by what occurred before                 (pure)
draft_model  drafts by a smaller model
drafting  adds drafts to steps
verification  which drafted tokens are the model's own    (pure)
acceptance  which sampled tokens are appended, what ends  (pure)
text      token bytes to whole characters, stop strings   (pure)
native    a loaded model: its main context, and on a CPU the prefill context
prefill_context  prefills in a context of their own, and copying them to the main one and back
context   a llama.cpp context: what it decodes and what it holds
envelope  KV state outside a context: what it is, of which model, and whether it is whole  (pure)
state     what a context writes of a sequence, with and without flash attention  (pure)
tiers/    host memory and disk for what leaves the KV cache
tier_stats  what is reported of them
clock     what the time is
batch     the tokens of a step, as llama.cpp takes them
"""
