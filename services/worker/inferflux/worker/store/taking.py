"""Makes what was pulled a model of a store: its file is read and tried first."""

from __future__ import annotations

import asyncio
from pathlib import Path

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.models.model_roles import embeds
from inferflux.worker.files.fit import PHYSICAL_BATCH
from inferflux.worker.files.mmproj_file import probe_projection
from inferflux.worker.files.model_file import ModelFile, ModelFileError, probe_model_file
from inferflux.worker.settings import WorkerSettings

from .folder import Manifest, StoreFolder, without_projector


async def take(folder: StoreFolder, manifest: Manifest, settings: WorkerSettings) -> tuple[Manifest, str]:
    """Move a model from the parts of a store into it. What cannot be served is deleted: another pull would
    bring the same. A projector that cannot be used leaves its model without one.

    Returns:
        Its manifest, and why it is without its projector; empty where it has it, or never had one.

    Raises:
        InvalidArgument: it cannot be served.
        AlreadyExists: there is a model of this name.
    """
    part, why_blind = folder.part(manifest.name), ""
    try:
        file = await probe_model_file(part / manifest.files[0].name)
        if manifest.projector is not None:
            why_blind = await _why_blind(part / manifest.projector.name, file, settings)
    except ModelFileError as error:
        await asyncio.to_thread(folder.remove_part, manifest.name)
        raise InvalidArgument(str(error), field="source", reason="BAD_MODEL_FILE") from None
    if why_blind:
        manifest = await asyncio.to_thread(without_projector, part, manifest)
    folder.commit(manifest.name)
    return manifest, why_blind


async def _why_blind(path: Path, file: ModelFile, settings: WorkerSettings) -> str:
    """Why a model cannot have a projector; empty if it can."""
    if embeds(file.facts.role):
        return "the model does not generate"
    most_whole = min(settings.batch_tokens, PHYSICAL_BATCH)
    try:
        await probe_projection(path, file.path, most_whole=most_whole, field="mmproj")
    except InvalidArgument as error:
        return error.message
    return ""
