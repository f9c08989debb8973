"""Time of the CPU that the constraint of many tools takes to read, to write as a grammar, and to compile.

.venv/bin/python -m benchmarks.many_tools [--tools N] [--parameters N] [TEMPLATE ...]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from inferflux.common.llama.vocab import Vocab
from inferflux.common.text.constraints.compiling import Compiler, grammar_of
from inferflux.gateway.request.tools import functions_of
from inferflux.v1 import generation_pb2, inference_pb2

from .right_answers import syntax_of

_MODEL = Path(__file__).parents[1] / "models/inferflux-demo.gguf"
# One for each way to write arguments.
_TEMPLATES = ("Qwen-Qwen3-0.6B", "Qwen3-Coder", "LFM2.5-8B-A1B", "google-gemma-4-31B-it", "MiniMax-M3")
_SCHEMAS: tuple[Any, ...] = (
    {"type": "string", "description": "A text of some length."},
    {"type": "integer", "minimum": 0, "maximum": 1000},
    {"type": "boolean"},
    {"type": "array", "items": {"type": "string"}},
    {"type": "string", "enum": ["a", "b", "c"]},
    {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x"]},
)


def tools(n: int, n_parameters: int) -> list[inference_pb2.Tool]:
    """Tools with names of their own for every parameter."""
    made = []
    for i in range(n):
        names = [f"param_{i}_{j}" for j in range(n_parameters)]
        properties = {name: _SCHEMAS[j % len(_SCHEMAS)] for j, name in enumerate(names)}
        schema = {"type": "object", "properties": properties, "required": names[::3]}
        made.append(inference_pb2.Tool(name=f"tool_{i}", parameters=json.dumps(schema)))
    return made


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("templates", nargs="*", default=_TEMPLATES, metavar="TEMPLATE")
    options.add_argument("--tools", type=int, default=128)
    options.add_argument("--parameters", type=int, default=30)
    given = options.parse_args()
    vocab = Vocab.load(_MODEL)
    compiler = Compiler(vocab)
    compiler.read_vocabulary()
    made = tools(given.tools, given.parameters)
    begin = time.process_time()
    functions, _ = functions_of(made)
    size = sum(len(tool.parameters) for tool in made)
    print(f"{given.tools} tools, {size >> 10} KiB of schemas: read in {time.process_time() - begin:.2f} s")
    for name in given.templates:
        calls = generation_pb2.ToolCallsConstraint(functions=functions, syntax=syntax_of(name))
        constraint = generation_pb2.StructuredConstraint(tool_calls=calls)
        begin = time.process_time()
        grammar = grammar_of(constraint, vocab.control_token, vocab.eog)
        written = time.process_time()
        compiler.compile(constraint)
        # Compiling writes it once more.
        whole = time.process_time() - written
        print(f"{name}: {len(grammar) >> 10} KiB written in {written - begin:.2f} s, in all {whole:.2f} s")


if __name__ == "__main__":
    main()
