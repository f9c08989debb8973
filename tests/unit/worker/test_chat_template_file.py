"""A model whose chat template is in a file of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import chat_templates
from harness.gguf_files import Gguf, text, tiny_model

from inferflux.common.llama.vocab import Vocab
from inferflux.common.process.child.memory_file import path_of
from inferflux.worker.files.chat_template_file import with_template
from inferflux.worker.files.model_file import ModelFileError, probe_model_file, read_model_file

GOOD = tiny_model()


def write_model(path: Path, template: str | None) -> None:
    metadata = {key: value for key, value in GOOD.metadata.items() if key != "tokenizer.chat_template"}
    if template is not None:
        metadata["tokenizer.chat_template"] = text(template)
    path.write_bytes(Gguf(metadata, GOOD.tensors).data())


@pytest.mark.parametrize("own", ["{{ messages[0].content }}", None])
def test_a_template_takes_the_place_of_the_files_own(tmp_path: Path, own: str | None) -> None:
    write_model(tmp_path / "m.gguf", own)
    (tmp_path / "new.jinja").write_text(chat_templates.QWEN25)
    model = read_model_file(tmp_path / "m.gguf")
    made = with_template(model, tmp_path / "new.jinja")
    with path_of(made.tokenizer) as path:
        vocab = Vocab.load(path)
    assert vocab.chat_template == chat_templates.QWEN25
    vocab.close()
    assert made.digest != model.digest
    assert made.digest == with_template(model, tmp_path / "new.jinja").digest


@pytest.mark.parametrize(
    ("content", "why"), [(b"{% if %}", "does not parse"), (b"\xff", "UTF-8"), (b"x" * (300 << 10), "larger")]
)
def test_a_file_that_is_no_template_is_refused_by_its_name(tmp_path: Path, content: bytes, why: str) -> None:
    write_model(tmp_path / "m.gguf", None)
    (tmp_path / "new.jinja").write_bytes(content)
    with pytest.raises(ModelFileError, match=why) as caught:
        with_template(read_model_file(tmp_path / "m.gguf"), tmp_path / "new.jinja")
    assert str(caught.value).startswith(f"{tmp_path / 'new.jinja'}: ")


async def test_a_probe_tells_what_the_given_template_does_with_tools(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", chat_templates.CHATML)
    own = await probe_model_file(tmp_path / "m.gguf")
    assert (own.facts.can_call_tools, own.facts.has_generic_tools) == (True, True)
    (tmp_path / "new.jinja").write_text(chat_templates.QWEN25)
    given = await probe_model_file(tmp_path / "m.gguf", chat_template=tmp_path / "new.jinja")
    assert (given.facts.can_call_tools, given.facts.has_generic_tools) == (True, False)
    with pytest.raises(ModelFileError, match=r"nothing\.jinja"):
        await probe_model_file(tmp_path / "m.gguf", chat_template=tmp_path / "nothing.jinja")
