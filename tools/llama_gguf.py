"""Writes and reads GGUF files of the llama architecture, with a byte-level BPE and a ChatML template."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import gguf
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress

from inferflux.convert.writing import Target, file_type, kind_of, write_tensors

Weights = npt.NDArray[np.float32]

END_OF_TEXT: Final = "<|endoftext|>"
IM_START: Final = "<|im_start|>"
IM_END: Final = "<|im_end|>"
SPECIALS: Final = (END_OF_TEXT, IM_START, IM_END)

QUANTS: Final = ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")

CHAT_TEMPLATE: Final = """\
{%- for message in messages -%}
{%- set role = message['role'] -%}
{%- set calls = message['tool_calls'] or [] -%}
{%- if role not in ['system', 'user', 'assistant', 'tool'] -%}
{{- raise_exception('Unknown role: ' ~ role) -}}
{%- endif -%}
{%- if role == 'system' and not loop.first -%}
{{- raise_exception('A system message must come first') -}}
{%- endif -%}
{%- if message['content'] is not string and not calls -%}
{{- raise_exception('The content of a message must be text') -}}
{%- endif -%}
{%- if loop.first and tools -%}
{{- '<|im_start|>system\\n' -}}
{%- if role == 'system' -%}
{{- message['content'] ~ '\\n\\n' -}}
{%- endif -%}
{{- '# Tools\\n\\n<tools>\\n' -}}
{%- for tool in tools -%}
{{- (tool['function'] or tool) | tojson ~ '\\n' -}}
{%- endfor -%}
{{- '</tools><|im_end|>\\n' -}}
{%- endif -%}
{%- if role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1]['role'] != 'tool' -%}
{{- '<|im_start|>user' -}}
{%- endif -%}
{{- '\\n<tool_response>\\n' ~ message['content'] ~ '\\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1]['role'] != 'tool' -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- elif role != 'system' or not tools -%}
{{- '<|im_start|>' ~ role -}}
{%- if message['content'] or not calls -%}
{{- '\\n' ~ message['content'] -}}
{%- endif -%}
{%- for call in calls -%}
{%- set function = call['function'] or call -%}
{%- set arguments = function['arguments'] -%}
{{- '\\n<tool_call>\\n{"name": ' ~ function['name'] | tojson ~ ', "arguments": ' -}}
{{- (arguments if arguments is string else arguments | tojson) ~ '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
"""ChatML with tools as Qwen2.5 renders them: definitions in the system message, calls and results in tags."""


@dataclass(frozen=True, slots=True)
class LlamaSpec:
    """What the header of the file says about the model.

    Raises:
        ValueError: A dimension does not fit the others or the block size of the quantization.
    """

    name: str
    layers: int
    dim: int
    heads: int
    kv_heads: int
    ff: int
    context: int
    vocab: int
    quant: str = "Q8_0"
    tied: bool = True
    rope_base: float = 10_000.0
    norm_epsilon: float = 1e-5
    description: str = ""

    def __post_init__(self) -> None:
        if self.dim % self.heads or self.head_dim % 2:
            raise ValueError(f"{self.dim} wide does not split into {self.heads} heads of even size")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads do not share {self.kv_heads} key/value heads evenly")
        block = gguf.GGML_QUANT_SIZES[self.quant_type][0]
        if self.dim % block or self.ff % block:
            raise ValueError(f"{self.quant} needs widths that are multiples of {block}")

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def quant_type(self) -> gguf.GGMLQuantizationType:
        return gguf.GGMLQuantizationType[self.quant]

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes (rows, columns) of all tensors, in the order of the file."""
        kv_dim = self.kv_heads * self.head_dim
        yield "token_embd.weight", (self.vocab, self.dim)
        for i in range(self.layers):
            yield f"blk.{i}.attn_norm.weight", (self.dim,)
            yield f"blk.{i}.attn_q.weight", (self.dim, self.dim)
            yield f"blk.{i}.attn_k.weight", (kv_dim, self.dim)
            yield f"blk.{i}.attn_v.weight", (kv_dim, self.dim)
            yield f"blk.{i}.attn_output.weight", (self.dim, self.dim)
            yield f"blk.{i}.ffn_norm.weight", (self.dim,)
            yield f"blk.{i}.ffn_gate.weight", (self.ff, self.dim)
            yield f"blk.{i}.ffn_up.weight", (self.ff, self.dim)
            yield f"blk.{i}.ffn_down.weight", (self.dim, self.ff)
        yield "output_norm.weight", (self.dim,)
        if not self.tied:
            yield "output.weight", (self.vocab, self.dim)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A byte-level BPE: tokens in the order of their ids, merges by rank."""

    tokens: Sequence[str]
    merges: Sequence[str]
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ids", {token: i for i, token in enumerate(self.tokens)})
        if len(self._ids) != len(self.tokens):
            raise ValueError("the vocabulary holds a token twice")
        if missing := [token for token in SPECIALS if token not in self._ids]:
            raise ValueError(f"the vocabulary lacks {', '.join(missing)}")

    def id(self, token: str) -> int:
        return self._ids[token]


def _header(writer: gguf.GGUFWriter, spec: LlamaSpec) -> None:
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(spec.name)
    if spec.description:
        writer.add_description(spec.description)
    writer.add_block_count(spec.layers)
    writer.add_context_length(spec.context)
    writer.add_embedding_length(spec.dim)
    writer.add_feed_forward_length(spec.ff)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_layer_norm_rms_eps(spec.norm_epsilon)
    writer.add_rope_dimension_count(spec.head_dim)
    writer.add_rope_freq_base(spec.rope_base)
    writer.add_vocab_size(spec.vocab)
    writer.add_file_type(file_type(spec.quant))
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _tokenizer(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types([control if token in SPECIALS else normal for token in vocabulary.tokens])
    writer.add_token_merges(list(vocabulary.merges))
    writer.add_bos_token_id(vocabulary.id(END_OF_TEXT))
    writer.add_eos_token_id(vocabulary.id(IM_END))
    writer.add_eot_token_id(vocabulary.id(IM_END))
    writer.add_pad_token_id(vocabulary.id(END_OF_TEXT))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def write_llama(
    path: Path,
    spec: LlamaSpec,
    vocabulary: Vocabulary,
    weights: Callable[[str, tuple[int, ...]], Weights],
) -> None:
    """Write a model; ``weights`` is asked for one tensor at a time, so that memory holds no more than one.

    Matrices are stored in the spec's quantization, norms in F32.
    """
    writer = gguf.GGUFWriter(path, "llama")
    _header(writer, spec)
    _tokenizer(writer, vocabulary)
    targets = [Target(name, shape, kind_of(shape, spec.quant_type)) for name, shape in spec.tensors()]
    path.parent.mkdir(parents=True, exist_ok=True)
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task(path.name, total=len(targets))

        def load(target: Target) -> Weights:
            progress.advance(bar)
            return weights(target.name, target.shape)

        write_tensors(writer, targets, load)


def read_llama(path: Path) -> tuple[Vocabulary, dict[str, Weights]]:
    """The vocabulary of a file that `write_llama` wrote, and its tensors (rows, columns) in F32.

    Raises:
        ValueError: the file's vocabulary is not a byte-level BPE with the special tokens.
    """
    reader = gguf.GGUFReader(path)
    tokens, merges = (reader.fields.get(f"tokenizer.ggml.{name}") for name in ("tokens", "merges"))
    if tokens is None or merges is None:
        raise ValueError(f"{path} has no byte-level BPE")
    weights: dict[str, Weights] = {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        for tensor in reader.tensors
    }
    return Vocabulary(tokens.contents(), merges.contents()), weights


def mean_llama(paths: Sequence[Path]) -> tuple[Vocabulary, dict[str, Weights]]:
    """The vocabulary of files that `read_llama` reads, and the mean of each tensor.

    Raises:
        ValueError: there are none, or one differs in vocabulary, tensors or shapes from the first.
    """
    if not paths:
        raise ValueError("there are no files")
    vocabulary, total = read_llama(paths[0])
    for path in paths[1:]:
        other, weights = read_llama(path)
        if other != vocabulary:
            raise ValueError(f"{path} has another vocabulary than {paths[0]}")
        if {n: w.shape for n, w in weights.items()} != {n: w.shape for n, w in total.items()}:
            raise ValueError(f"{path} has other tensors than {paths[0]}")
        total = {name: values + weights[name] for name, values in total.items()}
    share = np.float32(1 / len(paths))
    return vocabulary, {name: values * share for name, values in total.items()}
