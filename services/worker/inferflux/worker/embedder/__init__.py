"""The embedder: the engine process of a model that embeds or ranks. It speaks the messages of `engine.proto`.

jobs      one resident job, and its texts
planner   which texts go into the next step               (pure)
core      the step: plan, compute, report
backend   llama.cpp: a model, and a context that pools
"""
