"""The kinds of models that can be converted, by what config.json calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from .decoders import GEMMA, LLAMA, QWEN2, QWEN3, decoder
from .encoders import bert
from .fields import Fields
from .layouts import Layout

ARCHITECTURES: Mapping[str, Callable[[Fields], Layout]] = {
    "LlamaForCausalLM": decoder(LLAMA),
    "MistralForCausalLM": decoder(LLAMA),
    "Qwen2ForCausalLM": decoder(QWEN2),
    "Qwen3ForCausalLM": decoder(QWEN3),
    "GemmaForCausalLM": decoder(GEMMA),
    "BertModel": partial(bert, ranks=False),
    "BertForMaskedLM": partial(bert, ranks=False),
    "BertForSequenceClassification": partial(bert, ranks=True),
}


def layout_of(config: Fields) -> Layout:
    """Layout of a model: its metadata and tensors.

    Raises:
        ConversionError: its architecture is not known, or a field of config.json cannot be.
    """
    names = config.items("architectures")
    name = names[0] if len(names) == 1 else None
    if not isinstance(name, str) or name not in ARCHITECTURES:
        shown = f"{name[:60]!r}" if isinstance(name, str) else f"{names!r:.60}"
        raise config.error("architectures", f"{shown} is not converted: {', '.join(ARCHITECTURES)} are")
    if config.inner("quantization_config") is not None:
        raise config.error("quantization_config", "its weights are quantized already: take the original")
    if config.inner("auto_map") is not None:
        raise config.error("auto_map", "the model brings code of its own, which is never run")
    return ARCHITECTURES[name](config)
