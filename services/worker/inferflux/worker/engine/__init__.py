"""The engine: a process of its own with one thread that drives llama.cpp.

step         take up what arrived, decode, sample, report
plan         resident requests, and which of their tokens the next batch has   (pure)
memory       where the computed part of each sequence is, and who leaves the KV cache
kv           KV cells and states outside of a context, counted and described  (pure)
tiers        host memory and disk for what leaves the KV cache
llama        models, contexts, batches, devices, and trials of what they can do
media        images and sounds, encoded beside the steps
sampling     from logits to tokens
constraints  constraints of answers: compiled beside the steps, checked at the end
"""
