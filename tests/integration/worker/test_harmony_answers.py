"""In gpt-oss's format `<|end|>` ends a message; `<|return|>` and `<|call|>` end the answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.reciting_model import reciting_model
from harness.serving import Served, load
from harness.worker import batch_item

from inferflux.common.text.answers.families import HARMONY
from inferflux.common.text.answers.parser import AnswerParser
from inferflux.common.text.answers.pieces import CallArguments, CallName, Content, Piece, Reasoning
from inferflux.v1 import generation_pb2

# A piece is said once: where a marker comes again, texts spell it.
MARKERS = {b"<|channel|>", b"<|message|>", b"<|end|>", b"<|start|>", b"<|constrain|>"}
THOUGHT = [
    b"<|channel|>",
    b"analysis",
    b"<|message|>",
    b"Two, ",
    b"two.",
    b"<|end|>",
    b"<|start|>",
    b"assistant",
]
FINAL = [b"<|chan", b"nel|>final<|mess", b"age|>", b"It is", b" 4."]
CALL = [
    *(b"<|chan", b"nel|>commentary to=functions.add "),
    *(b"<|constrain|>", b"json<|mess", b"age|>", b'{"a": 2}'),
]


@pytest.mark.parametrize(
    ("pieces", "end", "eos", "told"),
    [
        ([*THOUGHT, *FINAL], b"<|return|>", "<|call|>", [Reasoning("Two, two."), Content("It is 4.")]),
        (
            [*THOUGHT, *CALL],
            b"<|call|>",
            "<|return|>",
            [Reasoning("Two, two."), CallName(0, "add"), CallArguments(0, '{"a": 2}')],
        ),
    ],
)
def test_an_answer_of_several_messages_is_whole(
    tmp_path: Path, pieces: list[bytes], end: bytes, eos: str, told: list[Piece]
) -> None:
    """llama.cpp takes `<|end|>` for no end where the vocabulary has both others."""
    model = reciting_model([*pieces, end], "", control={*MARKERS, end}, end=eos)
    backend = load(model.write(tmp_path / "harmony.gguf"), kv_cells=256, prefill_cells=0)
    served = Served(backend)
    item = batch_item("r", prompt=[ord("\n")], max_tokens=60)
    item.request.params.ignore_eos = False
    served.run(item)
    text = "".join(chunk.text for chunk in served.chunks)
    assert text == b"".join(pieces).decode()
    assert served.chunks[-1].finished.reason == generation_pb2.FINISH_REASON_STOP
    parser = AnswerParser(syntax=HARMONY, names={"add"})
    assert [*parser.push(text), *parser.finish()] == told
