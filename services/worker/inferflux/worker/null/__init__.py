"""An engine without a model: it makes tokens at given rates, and costs next to nothing.

answers  which tokens an answer has                                   (pure)
jobs     one resident request, and what is told of it                 (pure)
core     the step: slots, KV cells, prefill and decode at their rates (pure)
engine   the core on the worker's own event loop, as an engine process would be
"""
