"""A host of models: loads them and unloads them while others serve.

Each loaded model is a `ModelWorker`, with an engine process of its own. So a load, an unload and a native
crash touch no other model.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from inferflux.common.contract.errors import Aborted, InferFluxError, InvalidArgument
from inferflux.common.contract.models import load_retries
from inferflux.common.contract.models.model_roles import embeds
from inferflux.common.process import logs
from inferflux.common.process.tasks import Background, until_next
from inferflux.v1 import host_pb2, model_pb2
from inferflux.worker.files.fit import PHYSICAL_BATCH
from inferflux.worker.files.model_file import ModelFile
from inferflux.worker.model.model_options import ModelOptions
from inferflux.worker.model.residents import ResidentTable
from inferflux.worker.processes.engine_host import EngineLoadError

from .catalog import Catalog, Known, Wish
from .heartbeat import HEARTBEAT_INTERVAL_S
from .host_adapters import HostAdapters
from .host_tier import Part, divide
from .model_parts import Process
from .model_setup import engine_config, first_card, learnt, model_needs, with_trials
from .model_worker import ModelWorker
from .registration import probed

_REGISTERED, _LOADING = model_pb2.MODEL_STATE_REGISTERED, model_pb2.MODEL_STATE_LOADING
# From the last change of a model until an engine process is started ahead.
_LOOK_AHEAD_S = 1.0

log = logs.get("worker.host")


class Host:
    """The models of one worker process.

    Args:
        process: what they share.
        on_change: awaited when the state of a model has changed.
        on_loaded: told the worker id and the incarnation of a model that is about to be loaded.
        on_gone: told the worker id of one that is gone.

    Attributes:
        catalog: every model that it knows.
        adapters: of these models.
    """

    def __init__(
        self,
        process: Process,
        catalog: Catalog,
        *,
        on_change: Callable[[], Awaitable[None]],
        on_loaded: Callable[[str, str], None],
        on_gone: Callable[[str], None],
    ) -> None:
        self.catalog = catalog
        self._process = process
        self._on_change = on_change
        self._on_loaded = on_loaded
        self._on_gone = on_gone
        self._workers: dict[str, ModelWorker] = {}
        self.adapters = HostAdapters(catalog, self._workers, on_change)
        self._serving: dict[str, asyncio.Task[None]] = {}
        # Of models that are gone: what they have finished lately, while its chunks may be needed.
        self._gone: list[ResidentTable] = []
        self._background = Background()
        self._retries = Background()
        self._is_leaving = False
        self._preparing: asyncio.TimerHandle | None = None

    # What it has

    @property
    def _most_whole(self) -> int:
        """Most cells of an image that one step computes together."""
        return min(self._process.settings.batch_tokens, PHYSICAL_BATCH)

    @property
    def workers(self) -> Iterable[ModelWorker]:
        """Workers of the models that are loaded now, or are being loaded or unloaded."""
        return self._workers.values()

    def why_not_ready(self) -> str:
        """Name of a pinned model that is not ready, and why; empty if all are."""
        for known in self.catalog:
            if known.wish.is_pinned and known.state != model_pb2.MODEL_STATE_READY:
                worker = self._workers.get(known.name)
                return known.reason or (worker.model.why_not_ready if worker else "") or "loading the model"
        return ""

    def why_not_warm(self) -> str:
        """Name of a ready model that exchanges no state with other workers, of a worker with a role; empty if
        there is none. A null engine has no state."""
        settings = self._process.settings
        if settings.role == "unified" or settings.engine == "null":
            return ""
        ready = ((name, worker) for name, worker in self._workers.items() if worker.model.is_ready)
        cold = [name for name, worker in ready if not worker.exchanges_state]
        why = "no state goes to other workers or comes from them (INFERFLUX_WORKER_SHM_BYTES, /dev/shm)"
        return f"{cold[0]}: {why}" if cold else ""

    def what_failed(self) -> str:
        """Names of the models that have failed, each with its reason; empty if none has."""
        failed = (known for known in self.catalog if known.state == model_pb2.MODEL_STATE_FAILED)
        return "; ".join(f"{known.name}: {known.reason}" for known in failed)

    def kept_chunks(self) -> dict[str, list[bytes]]:
        """The chunks that are kept for a while, by token subject: also of models that are gone."""
        kept: dict[str, list[bytes]] = {}
        for residents in (*self._gone, *(worker.model.residents for worker in self._workers.values())):
            kept |= residents.kept_chunks(time.monotonic())
        return kept

    # What it is told

    async def know(self, wish: Wish, file: ModelFile) -> Known:
        """Make a model known, and put its tokenizer where gateways find it by the digest.

        Raises:
            AlreadyExists, ResourceExhausted, InvalidArgument: as `Catalog.add`.
            InvalidArgument: the file of an adapter cannot be used, or the model has a projector and does not
                generate.
            Aborted: it is loaded, and not with this projector.
            Unavailable, DeadlineExceeded: the tokenizer cannot be stored.
        """
        if wish.mmproj is not None and embeds(wish.role or file.facts.role):
            message = f"the model {wish.name!r} does not generate: it takes no images and no sounds"
            raise InvalidArgument(message, field="mmproj_path")
        whole = self.catalog.wish_with(wish)
        settings = self._process.settings
        needs = model_needs(settings, whole, file, room=self.catalog.memory_bytes)
        card = first_card(settings, whole, file, needs)
        known = self.catalog.add(Known(wish, file, needs, card, since_unix_ms=_now_ms()))
        for adapter in wish.adapters:
            await self.adapters.take(known, adapter)
        await self._offer(known)
        self.look_ahead()
        await self._on_change()
        return known

    async def register(self, wanted: host_pb2.RegisterModelFile) -> Known:
        """Make a file known under a name. What is known of it already stays, but for what is asked anew.

        Raises:
            InvalidArgument: `path`, `name`, `aliases` or `mmproj_path` cannot be used; says why.
            AlreadyExists, ResourceExhausted, Aborted, Unavailable, DeadlineExceeded: as `know`.
        """
        wish, file = await probed(wanted, most_whole=self._most_whole)
        known = await self.know(wish, file)
        log.info("a model is known", model=known.name, path=wanted.path, needs_bytes=known.needs.total)
        return known

    async def forget(self, name: str, *, unloads: bool = False) -> Known:
        """A model is not known any more; its file stays.

        Args:
            unloads: whether one that is loaded is unloaded first, and forgotten then; else it is refused.

        Raises:
            NotFound, Aborted: as `Catalog.forget`.
        """
        if unloads and (held := self.catalog.get(name)).is_held:
            held.is_forgotten = True
            return await self.unload(name)
        known = self.catalog.forget(name)
        log.info("a model is forgotten", model=name)
        self.look_ahead()
        await self._on_change()
        return known

    async def load(self, name: str, *, must_fit: bool = True) -> Known:
        """Begin to load a model, if it is not loaded; returns at once.

        Args:
            must_fit: whether it is refused where its file says that it needs more memory than is free. The
                engine looks once more.

        Raises:
            NotFound: it is not known.
            ResourceExhausted: there is no room for it; nothing has changed.
            Aborted: it is being unloaded, or this host leaves.
        """
        known = self.catalog.get(name)
        if known.state in (model_pb2.MODEL_STATE_LOADING, model_pb2.MODEL_STATE_READY):
            return known
        if self._is_leaving or known.state == model_pb2.MODEL_STATE_UNLOADING:
            raise Aborted(
                f"the model {name!r} cannot be loaded now: it is being unloaded", reason="UNLOADING"
            )
        known.worker_id = self.catalog.take_worker_id(known, must_fit=must_fit)
        worker = ModelWorker(
            self._process,
            known.worker_id,
            known.file,
            self._options(known),
            on_change=lambda: self._follow(known),
        )
        self._workers[name] = worker
        known.reason = ""
        self._set(known, model_pb2.MODEL_STATE_LOADING)
        self._divide_tier()
        self._on_loaded(worker.state.worker_id, worker.state.incarnation)
        self._serving[name] = self._background.start(self._serve(known, worker))
        log.info(
            "a model is being loaded", model=name, worker_id=known.worker_id, needs_bytes=known.needs.total
        )
        await self._on_change()
        return known

    async def unload(self, name: str, drain_limit_s: float | None = None) -> Known:
        """Begin to unload a model, if it is loaded; returns at once. Its requests may run on for
        `drain_limit_s` (the process's own limit by default), then others take them over. One that failed is
        not tried again by itself.

        Raises:
            NotFound: it is not known.
        """
        known = self.catalog.get(name)
        worker = self._workers.get(name)
        if known.state == model_pb2.MODEL_STATE_FAILED:
            known.reason, known.retry_unix_ms = "", 0
            self._set(known, model_pb2.MODEL_STATE_REGISTERED)
            await self._on_change()
        elif worker is not None and known.state != model_pb2.MODEL_STATE_UNLOADING:
            self._set(known, model_pb2.MODEL_STATE_UNLOADING)
            limit_s = self._process.settings.drain_limit_s if drain_limit_s is None else drain_limit_s
            worker.leave(limit_s)
            log.info("a model is unloaded", model=name, worker_id=known.worker_id)
            await self._on_change()
        return known

    async def until_failed(self, name: str) -> EngineLoadError:
        """Return why this model could not be loaded, as soon as that is so. Once it was ready, never."""
        known = self.catalog.get(name)
        while known.was_ready or known.state != model_pb2.MODEL_STATE_FAILED:
            task = self._serving.get(name)
            if task is None:
                await asyncio.Event().wait()
            else:
                await asyncio.wait([task])
        return EngineLoadError(known.reason)

    async def leave(self, drain_limit_s: float) -> None:
        """Unload every model; returns when all are gone."""
        self._is_leaving = True
        await self._retries.close()
        for name in list(self._workers):
            await self.unload(name, drain_limit_s)
        await self._background.finish(None)

    async def close(self) -> None:
        """End every engine now."""
        self._is_leaving = True
        await self._retries.close()
        await self._background.close()
        self.look_ahead()

    async def offer_tokenizers(self) -> None:
        """Put every tokenizer where gateways find it. One that cannot be put there leaves the others be."""
        for known in list(self.catalog):
            try:
                await self._offer(known)
            except InferFluxError as error:
                log.warning("a tokenizer cannot be stored", model=known.name, reason=error.reason)

    def look_ahead(self) -> None:
        """Soon have an engine process waiting, where a model is known that a request may have loaded."""
        if self._preparing is not None:
            self._preparing.cancel()
            self._preparing = None
        if self._process.settings.engine == "null":
            return
        states = {each.state for each in self.catalog if not embeds(each.card.role)}
        if self._is_leaving or not states & {_REGISTERED, _LOADING}:
            self._process.engines.close()
        elif _LOADING not in states:
            # Not at once: starting it would slow down the first tokens of the model that is just loaded.
            loop = asyncio.get_running_loop()
            self._preparing = loop.call_later(_LOOK_AHEAD_S, self._process.engines.prepare)

    # Host memory for KV state

    async def keep_dividing_tier(self) -> None:
        """Divide host memory for KV state again and again, as engines use it, for ever."""
        while True:
            self._divide_tier()
            await until_next(HEARTBEAT_INTERVAL_S)

    def _divide_tier(self) -> None:
        """Divide host memory for KV state among the engines: what is asked for, or what models leave."""
        settings = self._process.settings
        if settings.engine == "null":
            return
        models = {name: worker.model for name, worker in self._workers.items()}
        on_gpus = {name: model.gpu_bytes for name, model in models.items()}
        budget = min(settings.host_bytes, self.catalog.free_beside(on_gpus))
        parts = {
            name: Part(model.host_limit.now, model.host_limit.most, model.stats.host.bytes)
            for name, model in models.items()
            if model.has_host_tier
        }
        for name, n_bytes in divide(budget, parts).items():
            models[name].limit_host(n_bytes)

    # What follows

    async def _serve(self, known: Known, worker: ModelWorker) -> None:
        failure = ""
        try:
            await worker.run()
        except EngineLoadError as error:
            failure = str(error)
            if not self._ends_process(known):  # which says that line
                log.error("a model could not be loaded", model=known.name, why=failure)
        except InferFluxError as error:
            failure = f"it could not be served: {error.message}"
            log.error("a model is served no more", model=known.name, why=error.message)
        except Exception as error:
            failure = f"serving it ended unexpectedly: {type(error).__name__}"
            log.exception("a model's worker failed", model=known.name)
        finally:
            self._workers.pop(known.name, None)
            self._serving.pop(known.name, None)
            self._keep_chunks_of(worker)
            self._on_gone(worker.state.worker_id)
            known.worker_id = ""
            known.reason = failure
            if failure:
                self._try_again_later(known)
            self._set(known, model_pb2.MODEL_STATE_FAILED if failure else model_pb2.MODEL_STATE_REGISTERED)
            self._divide_tier()
        if known.is_forgotten:
            await self.forget(known.name)
        await self._on_change()

    def _ends_process(self, known: Known) -> bool:
        """True if a failure of this model is one of the process: its own model was never ready."""
        return known.is_own and not known.was_ready

    def _try_again_later(self, known: Known) -> None:
        """Note a failure. A pinned model is tried again by itself, after longer and longer pauses."""
        known.failures += 1
        known.retry_unix_ms = 0
        if known.wish.is_pinned and not self._is_leaving and not self._ends_process(known):
            pause_s = load_retries.pause_s(known.failures)
            known.retry_unix_ms = _now_ms() + int(pause_s * 1000)
            self._retries.start(self._try_again(known, known.retry_unix_ms, pause_s))

    async def _try_again(self, known: Known, retry_unix_ms: int, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        is_failed = known.state == model_pb2.MODEL_STATE_FAILED
        if not is_failed or known.retry_unix_ms != retry_unix_ms or not self.catalog.has(known):
            return
        log.info("a model that failed is tried again", model=known.name, failures=known.failures)
        try:
            await self.load(known.name, must_fit=not known.is_own)
        except InferFluxError as error:
            known.reason = error.message
            self._try_again_later(known)
            await self._on_change()

    def _keep_chunks_of(self, worker: ModelWorker) -> None:
        """A stream that ended just now may have to be published once more."""
        now = time.monotonic()
        self._gone = [residents for residents in self._gone if residents.kept_chunks(now)]
        self._gone.append(worker.model.residents)

    async def _follow(self, known: Known) -> None:
        """The model has become ready, or is ready no more."""
        worker = self._workers.get(known.name)
        if worker is not None and known.state != model_pb2.MODEL_STATE_UNLOADING:
            if worker.model.is_ready:
                known.was_ready, known.failures = True, 0
                known.trials = worker.model.engine_config
                if known.state == model_pb2.MODEL_STATE_LOADING:
                    known.load_s = max(_now_ms() - known.since_unix_ms, 0) / 1000
                known.card.CopyFrom(learnt(known.card, worker.model.card))
                known.reason = ""
                self._set(known, model_pb2.MODEL_STATE_READY)
            else:
                # Its engine died, or could not be started again: it is tried for ever.
                known.reason = worker.model.why_not_ready
                self._set(known, model_pb2.MODEL_STATE_LOADING)
        await self._on_change()

    async def _offer(self, known: Known) -> None:
        await self._process.bus.put_object(known.file.digest, known.file.tokenizer)
        mmproj = known.wish.mmproj
        if mmproj is not None:
            await self._process.bus.put_object(mmproj.digest, mmproj.skeleton)

    def _set(self, known: Known, state: model_pb2.ModelState.ValueType) -> None:
        if known.state != state:
            known.state, known.since_unix_ms = state, _now_ms()
            self.look_ahead()

    # How a model is served

    def _options(self, known: Known) -> ModelOptions:
        settings = self._process.settings
        return ModelOptions(
            name=known.name,
            engine=with_trials(engine_config(settings, known), known.trials),
            adapters=tuple(known.adapters.values()),
            load_limit_s=settings.load_limit_s,
            stuck_s=settings.stuck_s,
            kv_cells=known.needs.cells,
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
