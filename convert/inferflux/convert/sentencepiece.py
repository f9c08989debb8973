"""The vocabulary of a SentencePiece model file.

The file is a protobuf message, of which the fields that are needed are described here:
https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from .errors import ConversionError
from .fields import TOKENIZER_BYTES, read_bounded

_PACKAGE: Final = "inferflux.sentencepiece"
_BPE: Final = 2
_Field = descriptor_pb2.FieldDescriptorProto
# Of a message: name, number, type; a type that is text is another message, and repeated if it ends with "*".
_MESSAGES: Final[dict[str, Sequence[tuple[str, int, Any]]]] = {
    "Piece": (
        ("piece", 1, _Field.TYPE_STRING),
        ("score", 2, _Field.TYPE_FLOAT),
        ("type", 3, _Field.TYPE_INT32),
    ),
    "Trainer": (("model_type", 3, _Field.TYPE_INT32),),
    "Normalizer": (("add_dummy_prefix", 3, _Field.TYPE_BOOL),),
    "Model": (("pieces", 1, "Piece*"), ("trainer_spec", 2, "Trainer"), ("normalizer_spec", 3, "Normalizer")),
}


@dataclass(frozen=True, slots=True)
class Pieces:
    """Tokens in the order of their ids; `types` are numbered as GGUF numbers them."""

    texts: list[str]
    scores: list[float]
    types: list[int]
    adds_space: bool


def read_pieces(path: Path) -> Pieces:
    """Raises:
    ConversionError: it is no SentencePiece model, or none that merges pairs by their score.
    """
    model = _model_class()()
    try:
        model.ParseFromString(read_bounded(path, TOKENIZER_BYTES))
    except DecodeError as error:
        raise ConversionError(f"{path.name}: it is no SentencePiece model: {error}") from None
    if not model.pieces:
        raise ConversionError(f"{path.name}: pieces: there are none")
    # Unigram is the default of the format.
    if model.trainer_spec.model_type != _BPE:
        raise ConversionError(
            f"{path.name}: model_type: it does not merge pairs (BPE), which is not converted"
        )
    normalizer = model.normalizer_spec
    return Pieces(
        [piece.piece for piece in model.pieces],
        [piece.score for piece in model.pieces],
        [piece.type if piece.HasField("type") else 1 for piece in model.pieces],
        normalizer.add_dummy_prefix if normalizer.HasField("add_dummy_prefix") else True,
    )


@cache
def _model_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="inferflux/sentencepiece.proto", package=_PACKAGE)
    file.syntax = "proto2"
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            added = message.field.add(name=field, number=number, label=_Field.LABEL_OPTIONAL)
            if not isinstance(kind, str):
                added.type = kind
                continue
            added.type, added.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind.removesuffix('*')}"
            if kind.endswith("*"):
                added.label = _Field.LABEL_REPEATED
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Model"))
