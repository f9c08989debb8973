"""Measure what reading an answer costs: the time of each part of a long call, family by family.

.venv/bin/python -m benchmarks.answer_reader [--bytes N] [--part N]
"""

from __future__ import annotations

import argparse
import json
import time

from inferflux.common.text.answers import families
from inferflux.common.text.answers.parser import AnswerParser
from inferflux.v1 import generation_pb2

_JSON, _PYTHON, _GEMMA = (
    generation_pb2.ARGUMENT_STYLE_JSON,
    generation_pb2.ARGUMENT_STYLE_PYTHON,
    generation_pb2.ARGUMENT_STYLE_GEMMA,
)
_NAME, _KEY = "write_file", "content"
_LINE = 'a line of a file, with "quotes" and <tags>\n'


def answer(calls: generation_pb2.CallSyntax, value: str) -> str:
    """An answer that is one call with one long argument."""
    quoted = json.dumps(value)
    arguments = calls.parameter.replace("$key", _KEY).replace("$value", value)
    arguments = arguments.replace("$is_string", "true").replace("$type", "string")
    if calls.style == _JSON:
        arguments = f'{{"{_KEY}": {quoted}}}'
    elif calls.style == _PYTHON:
        arguments = f"{_KEY}={quoted}"
    elif calls.style == _GEMMA:
        arguments = f'{_KEY}:<|"|>{value}<|"|>'
    call = calls.call.replace("$name", _NAME).replace("$arguments", arguments)
    for placeholder in ("$id", "$index", "$number"):
        call = call.replace(placeholder, "1")
    return calls.begin.replace("$name", _NAME) + call + calls.end


def times_of(syntax: generation_pb2.AnswerSyntax, text: str, part: int, *, is_exact: bool) -> list[float]:
    """Seconds of each part, in order of size; the answer's end is the last part."""
    parser = AnswerParser(syntax=syntax, names={_NAME: {_KEY: "string"}}, is_exact=is_exact)
    taken: list[float] = []
    for at in range(0, len(text), part):
        begin = time.perf_counter()
        parser.push(text[at : at + part])
        taken.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    parser.finish()
    taken.append(time.perf_counter() - begin)
    return sorted(taken)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--bytes", type=int, default=1 << 20, help="of the argument")
    options.add_argument("--part", type=int, default=5, help="characters of a chunk")
    given = options.parse_args()
    value = _LINE * (given.bytes // len(_LINE))
    table = {"hermes": families.HERMES, "harmony": families.HARMONY, "lfm2": families.LFM2}
    table |= {texts[0]: syntax for texts, syntax in families.FAMILIES if syntax.HasField("calls")}
    print(f"{'family':32} {'held':5} {'p50 us':>8} {'p99 us':>8} {'last ms':>8} {'whole s':>8}")
    for name, syntax in table.items():
        for is_exact in (False, True):
            taken = times_of(syntax, answer(syntax.calls, value), given.part, is_exact=is_exact)
            p50, p99 = taken[len(taken) // 2], taken[int(len(taken) * 0.99)]
            row = f"{p50 * 1e6:8.1f} {p99 * 1e6:8.1f} {taken[-1] * 1e3:8.1f} {sum(taken):8.2f}"
            print(f"{name:32} {is_exact!s:5} {row}")


if __name__ == "__main__":
    main()
