"""Conversion of a folder of Hugging Face's to a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf

from .architectures import layout_of
from .encoders import modern_name, pooling_of
from .errors import ConversionError
from .fields import read_fields
from .layouts import Layout
from .out_types import OutType
from .safetensors import Stored, Weights, read_folder
from .vocabulary import Vocabulary, read_vocabulary, write_special
from .writing import Target, file_type, kind_of, quant_type, replacing, write_tensors

# Beside the tensors: metadata, of which the vocabulary is most.
_METADATA_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Converted:
    """Attributes:
    architecture: llama.cpp's name.
    n_tensors: of the file.
    notes: what its user should know of it.
    """

    path: Path
    n_bytes: int
    architecture: str
    n_tensors: int
    notes: Sequence[str]


def convert(
    folder: Path,
    out: Path,
    *,
    out_type: OutType = OutType.F16,
    name: str = "",
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Converted:
    """Write the model in `folder` to `out`, whole or not at all.

    Args:
        folder: config.json, model.safetensors or its shards with their index, and a tokenizer's files.
        out_type: of matrices; vectors stay as they are.
        name: of the model; by default the folder's.
        on_progress: is told of tensors that are written, and of all.

    Raises:
        ConversionError: it is not a model that can be converted; names the file and the field.
    """
    config = read_fields(folder / "config.json")
    layout = layout_of(config)
    sources = _match(layout, read_folder(folder))
    vocabulary = read_vocabulary(folder).filled(layout.vocabulary_size)
    wished = quant_type(out_type)
    targets = [_target(layout, of, shape, wished) for of, shape in _shapes(layout, sources).items()]
    n_done = 0

    def load(target: Target) -> Weights:
        nonlocal n_done
        on_progress(n_done, len(targets))
        n_done += 1
        if target.name in layout.made:
            return layout.made[target.name]
        return layout.change(target.name, sources[target.name].load())

    needs = sum(target.n_bytes for target in targets) + _METADATA_BYTES
    with replacing(out, needs) as partial:
        writer = gguf.GGUFWriter(partial, gguf.MODEL_ARCH_NAMES[layout.architecture])
        _describe(writer, folder, layout, vocabulary, out_type, name or folder.resolve().name)
        write_tensors(writer, targets, load)
        n_bytes = partial.stat().st_size
    on_progress(len(targets), len(targets))
    architecture = gguf.MODEL_ARCH_NAMES[layout.architecture]
    return Converted(out, n_bytes, architecture, len(targets), layout.notes)


def _describe(
    writer: gguf.GGUFWriter,
    folder: Path,
    layout: Layout,
    vocabulary: Vocabulary,
    out_type: OutType,
    name: str,
) -> None:
    """Write the metadata."""
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_file_type(file_type(out_type))
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    layout.describe(writer)
    pooling = pooling_of(folder)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    vocabulary.write(writer)
    write_special(writer, folder, vocabulary)


def _shapes(layout: Layout, sources: Mapping[str, Stored]) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors of the file, in its order."""
    there = {of: shape for of, shape in layout.wanted.items() if of in sources}
    return there | {of: values.shape for of, values in layout.made.items()}


def _target(layout: Layout, name: str, shape: tuple[int, ...], wished: gguf.GGMLQuantizationType) -> Target:
    is_plain = name in layout.plain or name in layout.made
    return Target(name, shape, gguf.GGMLQuantizationType.F32 if is_plain else kind_of(shape, wished))


def _match(layout: Layout, stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """The model's tensors by llama.cpp's names.

    Raises:
        ConversionError: one is missing, of another shape, or not known.
    """
    known = gguf.get_tensor_name_map(layout.architecture, layout.layers)
    found: dict[str, Stored] = {}
    for own, tensor in stored.items():
        if any(part in own for part in layout.ignored):
            continue
        name = _name(layout, known, modern_name(own))
        if name is None or name not in layout.wanted:
            raise ConversionError(f"{tensor.file.name}: {own!r:.200} is not known of this architecture")
        if name in found:
            raise ConversionError(f"{tensor.file.name}: {own!r:.200} is there twice, under another name")
        if tensor.shape != layout.wanted[name]:
            has, wants = (list(shape) for shape in (tensor.shape, layout.wanted[name]))
            raise ConversionError(
                f"{tensor.file.name}: {own}: shape: {has}, and by config.json it is {wants}"
            )
        found[name] = tensor
    if missing := [name for name in layout.wanted if name not in found]:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ConversionError(f"there is no tensor for {missing[0]}{more}")
    return found


def _name(layout: Layout, known: gguf.TensorNameMap, own: str) -> str | None:
    for prefix in layout.prefixes:
        bare = own.removeprefix(prefix)
        if bare in layout.renamed:
            return layout.renamed[bare]
        for spelled in (bare, f"{prefix}{bare}"):
            name = known.get_name(spelled, try_suffixes=(".weight", ".bias"))
            if name is not None:
                return str(name)
    return None
