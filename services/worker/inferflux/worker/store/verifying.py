"""Reads models of a store again, and compares them with their manifests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from inferflux.common.contract.errors import NotFound

from .folder import StoreFolder
from .task import Report

_BLOCK = 1 << 20


def verify(
    store: StoreFolder, name: str, say: Callable[[Report], None], gone: tuple[str, ...] = ()
) -> Report:
    """Compare stored models with what was pulled; report those that differ.

    Args:
        name: of one; empty: all of the store.
        gone: models that differ because the store has nothing of them any more.

    Raises:
        NotFound: the store has no such model.
    """
    manifests = [m for m in store.manifests() if name in ("", m.name)]
    if name and not manifests and not gone:
        raise NotFound(f"the store has no model {name!r}", reason="UNKNOWN_MODEL")
    total = sum(manifest.size for manifest in manifests)
    done, differing = 0, list(gone)
    for manifest in manifests:
        is_same = True
        for file in manifest.all_files:
            digest, size = hashlib.sha256(), 0
            try:
                with (store.model(manifest.name) / file.name).open("rb") as content:
                    while block := content.read(_BLOCK):
                        digest.update(block)
                        size += len(block)
                        say(Report(done=done + size, total=total, doing=f"reading {manifest.name}"))
            except OSError:
                is_same = False
            done += file.size
            is_same = is_same and (size, digest.hexdigest()) == (file.size, file.sha256)
        if not is_same:
            differing.append(manifest.name)
    return Report(done=total, total=total, has_ended=True, differing=tuple(differing))
