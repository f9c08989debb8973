"""Tiny models of random weights of the architectures that people run, and what of serving works with each.

families    their metadata
writing     a model of random weights; llama.cpp says which tensors an architecture has
reference   llama.cpp's own greedy answers
trying      an engine in this process, every answer compared with llama.cpp's
hosting     a worker process: loaded, asked, unloaded
page        docs/architectures.md
"""
