"""Tokenizer files with the template a test wants."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf


def byte_characters() -> list[str]:
    """The characters that stand for the 256 bytes in GPT-2's vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in printable)
    characters = {byte: chr(byte) for byte in printable}
    characters |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [characters[byte] for byte in range(256)]


def write_tokenizer(
    path: Path, *, template: str | None, controls: Sequence[str] = (), user_defined: Sequence[str] = ()
) -> bytes:
    """A GGUF without tensors: one token per byte, BOS, EOS, control and user-defined tokens, a template."""
    tokens = [*byte_characters(), "he", "<s>", "</s>", *controls, *user_defined]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 257 + [3] * (2 + len(controls)) + [4] * len(user_defined))
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_add_bos_token(True)
    if template is not None:
        writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path.read_bytes()
