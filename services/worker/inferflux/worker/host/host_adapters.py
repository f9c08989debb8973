"""Adapters of a host's models: added and removed while the models serve."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests import adapters
from inferflux.common.process import logs
from inferflux.v1 import host_pb2, model_pb2
from inferflux.worker.files.adapter_file import AdapterFileError, probe_adapter_file

from .catalog import AdapterWish, Catalog, Known
from .model_worker import ModelWorker

log = logs.get("worker.host")


class HostAdapters:
    """Changes of adapters.

    Args:
        workers: of the models that are loaded, by name.
        on_change: awaited when the adapters of a model have changed.
    """

    def __init__(
        self,
        catalog: Catalog,
        workers: Mapping[str, ModelWorker],
        on_change: Callable[[], Awaitable[None]],
    ) -> None:
        self._catalog = catalog
        self._workers = workers
        self._on_change = on_change

    async def add(self, wanted: host_pb2.RegisterAdapterFile) -> Known:
        """Make a file an adapter of a model, in place of one of the same name.

        Raises:
            NotFound: the model is not known.
            InvalidArgument: `path`, `name` or `scale` cannot be used; says why.
            ResourceExhausted: the model has as many adapters as it may.
        """
        path = Path(wanted.path)
        if not path.is_absolute():
            raise InvalidArgument("the path of an adapter's file must be absolute", field="path")
        adapters.check_name(wanted.name, "adapter")
        adapters.check_scale(wanted.scale, "scale")
        known = self._catalog.get(wanted.model)
        await self.take(known, AdapterWish(wanted.name, path, wanted.scale))
        log.info("an adapter is known", model=known.name, adapter=wanted.name, path=str(path))
        await self._on_change()
        return known

    async def take(self, known: Known, wish: AdapterWish) -> None:
        """Have a model take an adapter that is asked for.

        Raises:
            InvalidArgument, ResourceExhausted: as `add`.
        """
        if known.card.role != model_pb2.MODEL_ROLE_GENERATION:
            raise InvalidArgument(f"the model {known.name!r} does not generate", field="model")
        try:
            adapter = await probe_adapter_file(wish.name, wish.path, wish.scale, known.file.path)
        except AdapterFileError as error:
            raise InvalidArgument(str(error), field="path", reason="BAD_ADAPTER_FILE") from None
        self._catalog.check_room_for(known, adapter)
        worker = self._workers.get(known.name)
        # Requests may choose it as soon as it is known: it has to be loaded before.
        if worker is not None and (why := await worker.model.add_adapter(adapter)):
            worker.model.remove_adapter(adapter)
            raise InvalidArgument(why, field="path", reason="BAD_ADAPTER_FILE")
        former = known.take_adapter(adapter)
        if worker is not None:
            if former is not None and former.digest != adapter.digest:
                worker.model.remove_adapter(former)
            await worker.beat()

    async def remove(self, model: str, name: str) -> Known:
        """Requests may not choose this adapter any more; those that have begun with it end with it.

        Raises:
            NotFound: the model is not known, or has no such adapter.
        """
        known = self._catalog.get(model)
        adapter = known.drop_adapter(name)
        worker = self._workers.get(model)
        if worker is not None:
            worker.model.remove_adapter(adapter)
            await worker.beat()
        log.info("an adapter is forgotten", model=model, adapter=name)
        await self._on_change()
        return known
