"""Loading of a model: its weights on their devices, and a main context with as many cells as fit."""

from __future__ import annotations

import contextlib
import ctypes
import re
from pathlib import Path
from typing import Any

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.llama.native import first_log_error, llama, reading_log
from inferflux.common.llama.vocab import Vocab, VocabError
from inferflux.common.process.child.memory_file import path_of
from inferflux.common.process.machine.cores import usable_cores
from inferflux.common.process.machine.free_memory import at_most, free_bytes
from inferflux.v1 import engine_pb2
from inferflux.worker.engine.media.projector import Projector, ProjectorError
from inferflux.worker.engine.plan.speculation import MOST_ROWS
from inferflux.worker.files.fit import (
    CELLS_PER_SLOT,
    FEWEST_CELLS,
    PHYSICAL_BATCH,
    CellShape,
    DoesNotFitError,
    cells_in,
    fit_cells,
)
from inferflux.worker.files.kv_types import NUMBER_TYPES, USUAL, KvType, KvTypes
from inferflux.worker.files.mmproj_file import read_projection

from .context import Context, ContextError
from .devices import find_devices
from .pinned_load_log import LoadLog
from .rpc_servers import RpcServerError, add_servers
from .tensor_placement import Placement, PlacementError

# Addresses that threads and allocators reserve beyond the memory they use.
_RESERVED_BYTES = 2 << 30
_METADATA_BYTES = 256
# The KV cache lies in memory of the GPU then: llama.cpp says what does not fit there.
_GPU_DECIDES = 1 << 60
_FEWEST_BATCH_TOKENS = 8
# What llama.cpp says of types that it does not take for the keys or the values of a model.
_TYPES_REFUSED = re.compile(r"\b[KV] cache|cache types\b")


class LoadError(Exception):
    """The model file cannot be served; says why."""


class Loaded:
    """A model's weights and vocabulary, and its main context.

    Attributes:
        handle: llama.cpp's.
        context_length: that was asked for, or the one that the model was trained with.
        sequences: ids of the main context.
        log: lines of llama.cpp about where the weights and the cache are.

    Raises:
        LoadError: no such model, not a generative one, or too little memory.
    """

    def __init__(self, config: engine_pb2.EngineConfig, *, is_unified: bool) -> None:
        self._is_unified = is_unified
        self.placement = _placement_of(config)
        self.log = LoadLog()
        with reading_log(self.log.take):
            self.handle = _load_model(config, self.placement)
        self.vocab = Vocab(self.handle, owns_model=False)
        trained = int(llama.llama_model_n_ctx_train(self.handle))
        self.context_length = config.context_length or trained
        self.sequences = config.sequences or config.slots
        self.kv_types = _types_of(config)
        self.threads = config.threads or usable_cores()
        with reading_log(self.log.take):
            self.main = self._new_main(config)
        if not self.main.has_memory:
            raise LoadError(f"{config.model_path}: the model keeps no KV cache: it does not generate text")

    @property
    def heads(self) -> int:
        """Number of attention heads."""
        return max(int(llama.llama_model_n_head(self.handle)), 1)

    def new_context(
        self, cells: int, *, batch_tokens: int, physical_batch: int, flash_attention: bool, rows: int
    ) -> Context:
        """Another context of the model, with as many sequence ids.

        Raises:
            ContextError: it cannot be made.
        """
        return Context(
            self.handle,
            cells=cells,
            sequences=self.sequences,
            batch_tokens=batch_tokens,
            physical_batch=physical_batch,
            flash_attention=flash_attention,
            threads=self.threads,
            vocabulary=self.vocab.size,
            rows=rows,
            types=self.kv_types,
        )

    def new_projector(self, config: engine_pb2.EngineConfig, *, is_known: bool) -> Projector | None:
        """Return the projector that encodes images; None where none is asked for.

        Args:
            is_known: whether an engine before this one has tried it.

        Raises:
            LoadError: it cannot be used with this model.
        """
        if not config.mmproj_path:
            return None
        try:
            projection = read_projection(Path(config.mmproj_path), field="mmproj")
            vocab = Vocab.load(Path(config.model_path))
            with path_of(projection.skeleton) as skeleton:
                projector = Projector(
                    config.mmproj_path,
                    self.handle,
                    skeleton=str(skeleton),
                    vocab=vocab,
                    width=int(llama.llama_model_n_embd_inp(self.handle)),
                    most_whole=min(self.main.batch_tokens, self.main.physical_batch),
                    threads=self.threads,
                    flash_attention=self.main.flash_attention,
                    use_gpu=self.placement.offloads_here,
                    is_known=is_known,
                )
            vocab.close()
            return projector
        except (ProjectorError, VocabError, InvalidArgument) as error:
            raise LoadError(f"{config.model_path}: its mmproj {config.mmproj_path}: {error}") from None

    def _new_main(self, config: engine_pb2.EngineConfig) -> Context:
        """The main context.

        Raises:
            LoadError: it does not fit into memory, or the model's keys and values cannot be kept so.
        """
        free = _GPU_DECIDES if self.placement.offloads else free_bytes()
        try:
            with contextlib.nullcontext() if self.placement.offloads else at_most(free + _RESERVED_BYTES):
                wanted, least, kept_bytes = self._asked_cells(config)
                cells = fit_cells(wanted, least, CellShape(kept_bytes, PHYSICAL_BATCH), free)
                return self._new_main_context(
                    config,
                    cells=cells,
                    sequences=self.sequences,
                    batch_tokens=config.batch_tokens,
                    rows=MOST_ROWS,
                )
        except (ContextError, DoesNotFitError) as error:
            raise LoadError(f"{config.model_path}: {self._blamed(config, str(error))}: {error}") from None

    def _new_main_context(
        self,
        config: engine_pb2.EngineConfig,
        *,
        cells: int,
        sequences: int,
        batch_tokens: int,
        rows: int = 0,
    ) -> Context:
        return Context(
            self.handle,
            cells=cells,
            sequences=sequences,
            batch_tokens=batch_tokens,
            physical_batch=PHYSICAL_BATCH,
            flash_attention=self.placement.flash_attention(config),
            threads=self.threads,
            vocabulary=self.vocab.size,
            rows=rows,
            is_unified=self._is_unified,
            types=self.kv_types,
        )

    def _asked_cells(self, config: engine_pb2.EngineConfig) -> tuple[int, int, int]:
        """(cells that are wanted, the fewest that will do, what keys and values of one take).

        Raises:
            ContextError: as `_new_main_context`.
            DoesNotFitError: too few cells have room in the bytes that were asked for.
        """
        if config.kv_bytes:
            kept_bytes = self._measure_cell(config)
            cells = cells_in(config.kv_bytes, kept_bytes, config.context_length or FEWEST_CELLS)
            return cells, cells, kept_bytes
        wanted = config.kv_cells or max(self.context_length, config.slots * CELLS_PER_SLOT)
        least = config.kv_cells or config.context_length or min(wanted, FEWEST_CELLS)
        return wanted, least, self._estimate_cell()

    def _measure_cell(self, config: engine_pb2.EngineConfig) -> int:
        """Measure the bytes of a cell's keys and values, by a context that is as small as one can be."""
        trial = self._new_main_context(
            config, cells=FEWEST_CELLS, sequences=1, batch_tokens=_FEWEST_BATCH_TOKENS
        )
        try:
            return trial.cell_bytes() if trial.has_memory else 0
        finally:
            trial.close()

    def _estimate_cell(self) -> int:
        """The same by the model's metadata; no less than it is where all layers are alike."""
        heads = int(llama.llama_model_n_head_kv(self.handle))
        width = int(llama.llama_model_n_embd(self.handle)) // self.heads
        keys = self._metadata_number("attention.key_length", width)
        values = self._metadata_number("attention.value_length", width)
        types = self.kv_types
        of_layer = types.key_type.bytes_of(heads * keys) + types.value_type.bytes_of(heads * values)
        return int(llama.llama_model_n_layer(self.handle)) * of_layer

    def _blamed(self, config: engine_pb2.EngineConfig, error: str) -> str:
        """The setting that stands in the way, and its value."""
        if self.kv_types != USUAL and _TYPES_REFUSED.search(error):
            types = self.kv_types
            return f"INFERFLUX_WORKER_KV_TYPE_K is {types.keys}, INFERFLUX_WORKER_KV_TYPE_V is {types.values}"
        if config.kv_bytes:
            return f"INFERFLUX_WORKER_KV_BYTES is {config.kv_bytes}"
        if config.kv_cells:
            return f"INFERFLUX_WORKER_KV_CELLS is {config.kv_cells}"
        return f"the context length is {self.context_length}"

    def _metadata_number(self, name: str, default: int) -> int:
        """An integer field of the model's architecture; `default` where the file has none."""
        architecture = self._metadata("general.architecture")
        found = self._metadata(f"{architecture}.{name}")
        return int(found) if found.isdigit() else default

    def _metadata(self, key: str) -> str:
        buffer = ctypes.create_string_buffer(_METADATA_BYTES)
        n = llama.llama_model_meta_val_str(self.handle, key.encode(), buffer, _METADATA_BYTES)
        return buffer.value.decode("utf-8", "replace") if n > 0 else ""


def _types_of(config: engine_pb2.EngineConfig) -> KvTypes:
    """Raises:
    LoadError: there is no such type.
    """
    found: list[KvType] = []
    for given in (config.kv_type_k, config.kv_type_v):
        known = next((name for name in NUMBER_TYPES if name == (given or USUAL.keys)), None)
        if known is None:
            raise LoadError(f"no KV cache is kept in {given!r}")
        found.append(known)
    return KvTypes(*found)


def _placement_of(config: engine_pb2.EngineConfig) -> Placement:
    """Raises:
    LoadError: an RPC server is away, or the devices are not those that were counted on.
    """
    try:
        add_servers(config.placement.rpc_servers)
        return Placement(config, find_devices())
    except (RpcServerError, PlacementError) as error:
        raise LoadError(f"{config.model_path}: {error}") from None


def _load_model(config: engine_pb2.EngineConfig, placement: Placement) -> Any:
    params = llama.llama_model_default_params()
    placement.apply(params)
    model = llama.llama_model_load_from_file(config.model_path.encode(), params)
    if not model:
        raise LoadError(f"{config.model_path}: {first_log_error('not a usable GGUF file')}")
    if llama.llama_model_has_encoder(model) or not llama.llama_model_has_decoder(model):
        raise LoadError(f"{config.model_path}: only decoder models can generate")
    return model
