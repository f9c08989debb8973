"""Images and sounds that engines crashed over (pure).

An engine that crashes while it computes an image or a sound names it. No request is a suspect then: those
that have it end by name, and so do others that come with it. The next leader takes the list over.
"""

from __future__ import annotations

import json

from inferflux.common.contract.errors import InvalidArgument
from inferflux.scheduler.core.types.jobs import Job
from inferflux.scheduler.core.types.memory import Recent

_REMEMBERED = 1024
# The latest of them are written down for the next leader, each with so much of the cause.
_KEPT = 128
_MOST_CHARS = 500
# An engine may have crashed for want of memory: then it is tried again some time.
_REMEMBERED_S = 3600.0


class KillerImages:
    """Images by the model whose engine crashed over them."""

    def __init__(self) -> None:
        # By model and image id: when, and what ended the engine.
        self._found: Recent[tuple[str, str], tuple[float, str]] = Recent(_REMEMBERED)

    def add(self, model: str, image_id: str, cause: str, now: float) -> None:
        self._found.remember((model, image_id), (now, cause[:_MOST_CHARS]))

    def why_not(self, job: Job, now: float) -> InvalidArgument | None:
        """Reason why no engine may have this job; None if one may."""
        for image in job.request.images:
            since_s, cause = self._found.get((job.model, image.id)) or (-_REMEMBERED_S, "")
            if now - since_s < _REMEMBERED_S:
                message = f"an engine of the model ended over an image or a sound of the request: {cause}"
                return InvalidArgument(message, field="messages", reason="POISON_REQUEST")
        return None

    def encode(self) -> bytes:
        """Return what is written down: model, image id, when, and the cause of each."""
        entries = [[*key, *found] for key, found in self._found.items()]
        return json.dumps(entries[-_KEPT:]).encode()

    def restore(self, written: bytes) -> None:
        """Add what an earlier leader wrote down. What cannot be read is ignored."""
        try:
            entries = [
                (str(model), str(image_id), float(at), str(cause))
                for model, image_id, at, cause in json.loads(written)[:_KEPT]
            ]
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return
        for model, image_id, at, cause in entries:
            self.add(model, image_id, cause, at)
