"""The demo model: chat data, tokenizer, training, GGUF export and evaluation.

Two models are made here: ``demo``, and ``draft``, which shares its vocabulary. In an environment with the
packages of ``requirements/demo-model.in``, on two CPU cores:

    python -m tools.demo_model.train demo --steps 1000
    python -m tools.demo_model.train draft --steps 900 --rate 4e-3
    python -m tools.demo_model.export demo
    python -m tools.demo_model.export draft

and in the project's own environment, which has llama.cpp:

    python -m tools.demo_model.evaluate --per-kind 100

To train the published models further instead, with their vocabulary:

    python -m tools.demo_model.import_gguf demo
    python -m tools.demo_model.train demo --steps 400 --rate 1.5e-3 --parts 2

What the model then forgot is there again halfway between the files before and after:

    python -m tools.demo_model.average demo before.gguf after.gguf

Training leaves the tokenizer and a checkpoint per model in ``build/demo_model``; started again, it goes on
from there.
"""
