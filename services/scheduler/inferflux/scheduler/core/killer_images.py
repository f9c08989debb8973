"""Images and sounds that engines crashed over (pure).

An engine that crashes while it computes an image or a sound names it. No request is a suspect then: those
that have it end by name, and so do others that come with it. A new leader does not know it.
"""

from __future__ import annotations

from inferflux.common.errors import InvalidArgument

from .jobs import Job
from .memory import Recent

_REMEMBERED = 1024
# An engine may have crashed for want of memory: then it is tried again some time.
_REMEMBERED_S = 3600.0


class KillerImages:
    """Images by the model whose engine crashed over them."""

    def __init__(self) -> None:
        # By model and image id: when, and what ended the engine.
        self._found: Recent[tuple[str, str], tuple[float, str]] = Recent(_REMEMBERED)

    def add(self, model: str, image_id: str, cause: str, now: float) -> None:
        self._found.remember((model, image_id), (now, cause))

    def why_not(self, job: Job, now: float) -> InvalidArgument | None:
        """Why no engine may have this job; None if one may."""
        for image in job.request.images:
            since_s, cause = self._found.get((job.model, image.id)) or (-_REMEMBERED_S, "")
            if now - since_s < _REMEMBERED_S:
                message = f"an engine of the model ended over an image or a sound of the request: {cause}"
                return InvalidArgument(message, field="messages", reason="POISON_REQUEST")
        return None
