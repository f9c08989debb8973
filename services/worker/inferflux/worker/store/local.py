"""Pulls a model into the store of this machine before a worker serves it.

    INFERFLUX_MODELS_STORE=FOLDER python -m inferflux.worker.store.local SOURCE|NAME [TOLD]

For `inferctl up`, and for containers that run before a worker's. It writes `Report`s, a line each. A model
that the store has is not pulled again. In the folder TOLD it leaves model.path and mmproj.path, for
INFERFLUX_WORKER_MODEL_PATH_FILE and INFERFLUX_WORKER_MMPROJ_PATH_FILE, the second empty without a projector.
Its status is 1 then where the model cannot be had.
"""

from __future__ import annotations

import sys
from pathlib import Path

from inferflux.common.contract.checks import check_model_name
from inferflux.common.contract.errors import AlreadyExists, InvalidArgument, NotFound
from inferflux.common.contract.models.model_sources import parse_source
from inferflux.common.process.settings import load
from inferflux.v1 import model_pb2
from inferflux.worker.settings import WorkerSettings

from .__main__ import Reports, main, run_task
from .folder import Manifest, StoreFolder, read_manifest
from .jobs import pull_task
from .taking import take
from .task import Report


async def _pulled(wanted: str, settings: WorkerSettings, say: Reports) -> Report:
    """The model of the store that is called so, or is of this source; it is pulled where the store lacks it.

    Raises:
        InferFluxError: it cannot be had.
    """
    if settings.models_store is None:
        raise InvalidArgument("INFERFLUX_MODELS_STORE names no folder", field="INFERFLUX_MODELS_STORE")
    folder = StoreFolder(settings.models_store)
    if (named := folder.get(wanted)) is not None:
        return _found(folder, named)
    try:
        source = parse_source(wanted)
    except InvalidArgument as error:
        names = ", ".join(manifest.name for manifest in folder.manifests())
        message = f"{error.message}; models of the store: {names or 'none'}"
        raise NotFound(message, reason="UNKNOWN_MODEL") from None
    check_model_name(source.name, field="name")
    there = folder.get(source.name)
    if there is not None and there.source != source.shown:
        message = f"the store has {source.name!r} of {there.source}: `inferctl models rm` removes it"
        raise AlreadyExists(message, reason="MODEL_NAME_TAKEN")
    if there is not None:
        return _found(folder, there)
    folder.path.mkdir(parents=True, exist_ok=True)
    request = model_pb2.PullRequest(source=wanted)
    await run_task(pull_task(settings, folder, request, source.name), say)
    say(Report(doing="reading its head"))
    with folder.pulling(source.name) as parts:
        manifest, why_blind = await take(folder, read_manifest(parts), settings)
    return _found(folder, manifest, f"without its projector: {why_blind}" if why_blind else "")


def _found(folder: StoreFolder, manifest: Manifest, message: str = "") -> Report:
    place = folder.model(manifest.name)
    files = [manifest.files[0], *([manifest.projector] if manifest.projector else [])]
    return Report(
        done=manifest.size,
        total=manifest.size,
        has_ended=True,
        digest=manifest.digest,
        paths=tuple(str(place / file.name) for file in files),
        name=manifest.name,
        message=message,
    )


async def _told(wanted: str, told: list[Path], say: Reports) -> Report:
    report = await _pulled(wanted, load(WorkerSettings), say)
    for path, content in zip(told, [*report.paths, ""], strict=False):
        path.write_text(content)
    return report


def _run(wanted: str, folder: str = "") -> int:
    told = [Path(folder) / name for name in ("model.path", "mmproj.path")] if folder else []
    for path in told:
        path.unlink(missing_ok=True)
    return main(lambda say: _told(wanted, told, say)) or int(not all(path.exists() for path in told))


if __name__ == "__main__":
    sys.exit(_run(*sys.argv[1:]))
