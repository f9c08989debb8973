"""Answers of llama.cpp's own chat tests, read by us.

    make peers && .venv/bin/python -m benchmarks.llama_chat [--misses] [--json FILE]

llama.cpp's tests name, for each of some 60 chat templates, answers and what they mean. Their source is in the
package that is built anyway. It is compiled here so that each case tells what it expects, and ours is read
beside it: rendered with the same template, in one part, by character, and in parts of some characters. Prints
how many are read as llama.cpp means them, by template. Left out are cases that go on with a message, that are
cut, or whose thoughts are to stay text.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console
from rich.table import Table

from inferflux.common.text.answers.families import syntax_in
from inferflux.common.text.answers.parser import AnswerParser
from inferflux.common.text.answers.pieces import CallArguments, CallName, Content, Piece, Reasoning
from inferflux.common.text.constraints.answers.schemas import parameter_types
from inferflux.gateway.tokenizer.rendering import Asked, Rendered, Renderer
from inferflux.v1 import generation_pb2, inference_pb2

from .load.command_line import add_json, make_parser, write_json
from .rows.peer_build import PINS, Place, pin_of, place_of
from .rows.peers import PeerError

Json = dict[str, Any]
Read = tuple[str, str, list[tuple[str, Any]]]
_MOST_BYTES = 1 << 22
# The line of a case's `run` behind which it tells what it expects.
_BEFORE = '        LOG_INF("\\n\\x1b[38;5;126m[%s]'
_TELL = """
        {
            using J = nlohmann::ordered_json;
            const auto & p = tc_.params;
            J tools = J::array(), calls = J::array();
            for (const auto & t : p.tools) tools.push_back({{"name", t.name}, {"parameters", t.parameters}});
            for (const auto & c : tc_.expect.tool_calls) calls.push_back(J::array({c.name, c.arguments}));
            J told = {{"template", tester_.template_path()}, {"input", tc_.input}, {"tools", tools},
                {"enable_thinking", p.enable_thinking}, {"parses_thoughts", p.reasoning_format != 0},
                {"is_partial", tc_.is_partial}, {"continues", (int) p.continue_final_message != 0},
                {"content", tc_.expect.content}, {"reasoning", tc_.expect.reasoning_content},
                {"calls", calls}};
            std::cout << "CASE " << told.dump(-1, ' ', false, J::error_handler_t::replace) << std::endl;
            return;
        }
"""
_MAIN = "int main() { test_template_output_peg_parsers(false); return 0; }\n"


def told_source(source: str) -> str:
    """The source of llama.cpp's test, whose cases tell what they expect and are not run.

    Raises:
        PeerError: it is not as it was.
    """
    if source.count(_BEFORE) != 1 or "int main(int argc" not in source:
        raise PeerError("llama.cpp's tests/test-chat.cpp has another form than the one that is read here")
    head = "#include <nlohmann/json.hpp>\n"
    return head + source[: source.index("int main(int argc")].replace(_BEFORE, _TELL + _BEFORE) + _MAIN


def cases(place: Place) -> list[Json]:
    """The cases of llama.cpp's tests.

    Raises:
        PeerError: there is no build, or its test cannot be compiled.
    """
    if not place.is_built():
        raise PeerError("llama.cpp's server is not built here: make peers")
    llama, built = place.source / "vendor" / "llama.cpp", place.build / "bin"
    test, binary = llama / "tests" / "told-chat.cpp", place.folder / "told-chat"
    test.write_text(told_source((llama / "tests" / "test-chat.cpp").read_text()))
    include = ("common", "include", "ggml/include", "vendor", "src", "tools/mtmd", "tools/server")
    command = [
        *("g++", "-std=c++17", "-O1", "-w", str(test), "-o", str(binary)),
        *(f"-I{llama / folder}" for folder in include),
        *(f"-L{built}", f"-Wl,-rpath,{built}", "-lllama-common", "-lllama", "-lggml", "-lggml-base"),
    ]
    for run in (command, [str(binary)]):
        done = subprocess.run(run, cwd=llama, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PeerError(f"{run[0]}: {done.stderr[-2000:]}")
    return [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("CASE ")]


def rendered(case: Json, source: str) -> Rendered:
    """A prompt of the case's template and tools."""
    vocab: Any = SimpleNamespace(
        template_tokens={"bos_token": "<BOS>", "eos_token": "<EOS>"},
        chat_template=source,
        tool_template=None,
        control_spellings=frozenset(),
        user_spellings=frozenset(),
    )
    return Renderer(vocab, _MOST_BYTES).render(
        [inference_pb2.ChatMessage(role="user", content="Hey")],
        [inference_pb2.Tool(description="A function.", **tool) for tool in case["tools"]],
        Asked(switches={"enable_thinking": case["enable_thinking"]}, may_lack=True),
    )


def joined(pieces: list[Piece]) -> Read:
    """Content and thoughts without blanks around them, and calls with their arguments as JSON values."""
    content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    reasoning = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    names = [piece.name for piece in pieces if isinstance(piece, CallName)]
    arguments = ["" for _ in names]
    for piece in pieces:
        if isinstance(piece, CallArguments):
            arguments[piece.index] += piece.text
    called = [(name, value_of(text)) for name, text in zip(names, arguments, strict=True)]
    return content.strip(), reasoning.strip(), called


def value_of(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments


def read(case: Json, prompt: Rendered) -> Read | None:
    """The answer as it is read; None where that depends on its parts."""
    syntax = generation_pb2.AnswerSyntax()
    syntax.CopyFrom(syntax_in(prompt.syntax, prompt.reasoning))
    if not case["tools"]:
        syntax.ClearField("calls")
    types = {tool["name"]: parameter_types(json.loads(tool["parameters"])) for tool in case["tools"]}
    text, found = case["input"], []
    for n in (max(1, len(text)), 1, 3, 7):
        parser = AnswerParser(syntax=syntax, names=types, reasoning=prompt.reasoning, prefix=prompt.prefix)
        pieces = [piece for at in range(0, len(text), n) for piece in parser.push(text[at : at + n])]
        found.append(joined(pieces + parser.finish()))
    return found[0] if all(each == found[0] for each in found) else None


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--misses", action="store_true", help="print answers that are read otherwise")
    add_json(parser, "counts by template")
    options = parser.parse_args()
    place = place_of(pin_of("llama-cpp-python", PINS.read_text()).version, os.environ)
    try:
        all_cases = cases(place)
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    counts: dict[str, Counter[str]] = {}
    for case in all_cases:
        name = Path(case["template"]).stem
        count = counts.setdefault(name, Counter())
        is_text = not case["parses_thoughts"] and "think" in case["input"].lower()
        if case["continues"] or case["is_partial"] or is_text:
            count["left out"] += 1
            continue
        meant = joined([Content(case["content"]), Reasoning(case["reasoning"])])[:2]
        calls = [(called, value_of(arguments)) for called, arguments in case["calls"]]
        source = (place.source / "vendor" / "llama.cpp" / case["template"]).read_text()
        got = read(case, rendered(case, source))
        is_right = got == (*meant, calls)
        count["right" if is_right else "otherwise"] += 1
        if options.misses and not is_right:
            print(f"{name}: {case['input']!r}\n  llama.cpp: {(*meant, calls)}\n  ours:      {got}")
    table = Table("template", "right", "otherwise", "left out")
    for name, count in counts.items():
        table.add_row(name, *(str(count[kind]) for kind in ("right", "otherwise", "left out")))
    total = sum(counts.values(), Counter[str]())
    table.add_section()
    table.add_row("all", *(str(total[kind]) for kind in ("right", "otherwise", "left out")))
    Console().print(table)
    write_json(options, counts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
