"""Contexts beside the main one, and the reason where the model or the machine does not allow them."""

from __future__ import annotations

from inferflux.common.contract.checks import MAX_SEQUENCES
from inferflux.common.process.machine.free_memory import free_bytes
from inferflux.v1 import engine_pb2
from inferflux.worker.engine.kv.prefix_sharing import PrefixSharing, Sharing
from inferflux.worker.engine.plan.planner import MOST_DETERMINISTIC_ROWS
from inferflux.worker.files.fit import MOST_PREFILL_CELLS, PHYSICAL_BATCH, PREFILL_PART

from .context import ContextError
from .deterministic import DeterministicContext
from .loading import Loaded
from .prefill_context import PrefillContext
from .trial import TRIAL_ROWS, trial_tokens
from .trials import Trials

# Without flash attention the scores of all rows and cells are kept for a moment. Rows at a time are
# limited so that these take no more than this many bytes, but some rows are computed in any case.
_SCORES_BYTES = 128 << 20
_SCORE_BYTES = 4
_FEWEST_PREFILL_ROWS = 128
_ALL_IDS_IN_USE = f"all {MAX_SEQUENCES} sequence ids are in use: it needs one"


def prefill_context(
    loaded: Loaded,
    config: engine_pb2.EngineConfig,
    sharing: PrefixSharing,
    trials: Trials,
    *,
    context_length: int,
    is_known: bool,
) -> tuple[PrefillContext | None, str]:
    """(the prefill context; None where there is no need of one or it cannot be, why it cannot).

    Args:
        trials: have what was found of it, or get it.
        context_length: of a request.
        is_known: whether an engine before this one has tried it.
    """
    main = loaded.main
    cells = min(context_length, main.cells // PREFILL_PART, MOST_PREFILL_CELLS)
    if config.HasField("prefill_cells"):
        cells = config.prefill_cells
    if cells == 0 or not config.flash_attention or loaded.placement.offloads:
        return None, ""
    if sharing.kind in (Sharing.CHECKPOINTS, Sharing.NONE):
        return None, f"a part of a sequence cannot be copied to it: {sharing.reason}"
    if loaded.sequences == MAX_SEQUENCES:
        return None, _ALL_IDS_IN_USE
    if loaded.kv_types.value_type.is_quantized:
        return None, f"it has no flash attention, and nothing else takes values in {loaded.kv_types.values}"
    try:
        context = loaded.new_context(
            cells,
            batch_tokens=main.batch_tokens,
            physical_batch=_prefill_rows(loaded.heads, cells),
            flash_attention=False,
            rows=TRIAL_ROWS,
        )
    except ContextError as error:
        return None, str(error)
    prefill = PrefillContext(main, context)
    if not is_known:
        trials.prefill_error = prefill.why_not(trial_tokens(loaded.vocab))
        trials.prefill_works = not trials.prefill_error
    if trials.prefill_works:
        return prefill, ""
    prefill.close()
    return None, trials.prefill_error or "it was not tried"


def _prefill_rows(heads: int, cells: int) -> int:
    """Rows that a prefill context computes at a time: with more of them its threads wait less
    for each other."""
    fitting = _SCORES_BYTES // (heads * cells * _SCORE_BYTES)
    return max(_FEWEST_PREFILL_ROWS, min(fitting, PHYSICAL_BATCH))


def deterministic_context(
    loaded: Loaded, sharing: PrefixSharing, *, cells: int, kv_bytes: int
) -> tuple[DeterministicContext | None, str]:
    """(the context of deterministic requests, why there is none).

    Args:
        cells: that it has. kv_bytes: what their keys and values take.
    """
    if loaded.placement.offloads:
        return None, "layers of the model are on a GPU"
    if not loaded.main.flash_attention:
        return None, "the model is served without flash attention"
    if not sharing.is_divisible:
        return None, sharing.reason
    if loaded.sequences == MAX_SEQUENCES:
        return None, _ALL_IDS_IN_USE
    if kv_bytes > free_bytes():
        return None, f"there is no memory for {cells} KV cells of their own"
    try:
        context = loaded.new_context(
            cells,
            batch_tokens=PHYSICAL_BATCH,
            physical_batch=PHYSICAL_BATCH,
            flash_attention=True,
            rows=MOST_DETERMINISTIC_ROWS,
        )
    except ContextError as error:
        return None, str(error)
    made = DeterministicContext(context, loaded.sequences)
    if not made.keeps_its_word(trial_tokens(loaded.vocab)):
        made.close()
        return None, "on this machine the model's logits depend on what else a step holds"
    return made, ""
