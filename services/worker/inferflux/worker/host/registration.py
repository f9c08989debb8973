"""Registration of a model file: what is asked for is checked, and its files are tried."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from inferflux.common.contract.checks import check_model_name
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.messages.hosts import MAX_ALIASES
from inferflux.common.contract.models.model_sources import model_name_of
from inferflux.v1 import host_pb2
from inferflux.worker.files.mmproj_file import probe_projection
from inferflux.worker.files.model_file import ModelFile, ModelFileError, probe_model_file

from .catalog import Wish


async def probed(wanted: host_pb2.RegisterModelFile, *, most_whole: int) -> tuple[Wish, ModelFile]:
    """(what is asked for, the file), after each file was tried in a process of its own.

    Args:
        most_whole: cells of an image that one step computes together, at most.

    Raises:
        InvalidArgument: `path`, `name`, `aliases`, `chat_template_path` or `mmproj_path` cannot be used.
    """
    path = _absolute(wanted.path, "path", "a model file")
    mmproj = _absolute(wanted.mmproj_path, "mmproj_path", "a projector") if wanted.mmproj_path else None
    wish = Wish(
        name=wanted.name or model_name_of(path.name),
        aliases=tuple(wanted.aliases),
        is_pinned=wanted.is_pinned,
        role=wanted.role,
        is_deterministic=wanted.deterministic if wanted.HasField("deterministic") else None,
    )
    check_model_name(wish.name, field="name")
    if len(wish.aliases) > MAX_ALIASES:
        raise InvalidArgument(f"a model has at most {MAX_ALIASES} aliases", field="aliases")
    for alias in wish.aliases:
        check_model_name(alias, field="aliases")
    template = None
    if wanted.chat_template_path:
        template = _absolute(wanted.chat_template_path, "chat_template_path", "a chat template")
    try:
        file = await probe_model_file(path, chat_template=template)
    except ModelFileError as error:
        is_template = template is not None and str(error).startswith(f"{template}: ")
        field = "chat_template_path" if is_template else "path"
        raise InvalidArgument(str(error), field=field, reason="BAD_MODEL_FILE") from None
    if mmproj is not None:
        projection = await probe_projection(mmproj, file.path, most_whole=most_whole, field="mmproj_path")
        wish = replace(wish, mmproj=projection)
    return wish, file


def _absolute(path: str, field: str, name: str) -> Path:
    if not Path(path).is_absolute():
        raise InvalidArgument(f"the path of {name} must be absolute", field=field)
    return Path(path)
