"""A chat template from a file of its own, in place of those that a model's file has."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from pathlib import Path

from inferflux.common.text.chat_templates.templates import MAX_TEMPLATE_BYTES, ChatTemplate, TemplateError

from .gguf_header import HEADER, Kind
from .model_file import ModelFile, ModelFileError

_KEY = b"tokenizer.chat_template"
# Of the same lengths, and read by nothing.
_OTHER_KEYS = (_KEY, _KEY + b".tool_use")
_U64, _U32 = struct.Struct("<Q"), struct.Struct("<I")


def with_template(model: ModelFile, path: Path) -> ModelFile:
    """The model with the template of a file. Its digest is another one: gateways keep tokenizers by it.

    Raises:
        ModelFileError: the file cannot be read, or is no template.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TEMPLATE_BYTES + 1)
        ChatTemplate(data.decode(), tokens={}, max_rendered_bytes=0)
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ModelFileError(f"{path}: the chat template is not UTF-8") from None
    except TemplateError as error:
        raise ModelFileError(f"{path}: {error}") from None
    digest = hashlib.sha256(model.digest.encode() + b"\0" + data).hexdigest()
    return replace(model, digest=digest, tokenizer=_replaced(model.tokenizer, data))


def _replaced(tokenizer: bytes, template: bytes) -> bytes:
    """The head of a GGUF file with another template: the former ones go under names that nothing reads."""
    magic, version, tensors, entries = HEADER.unpack_from(tokenizer)
    metadata = tokenizer[HEADER.size :]
    for key in _OTHER_KEYS:
        metadata = metadata.replace(_named(key), _named(key[:-1] + b"_"))
    added = _named(_KEY) + _U64.pack(len(template)) + template
    return HEADER.pack(magic, version, tensors, entries + 1) + metadata + added


def _named(key: bytes) -> bytes:
    """Return the first bytes of the entry of a text."""
    return _U64.pack(len(key)) + key + _U32.pack(Kind.STRING)
