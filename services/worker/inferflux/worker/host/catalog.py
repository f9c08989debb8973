"""The models that a host knows, and what may be done with each (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from inferflux.common.contract.errors import (
    Aborted,
    AlreadyExists,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from inferflux.common.contract.messages.hosts import (
    MAX_BYTES,
    MAX_KNOWN,
    MAX_REASON_BYTES,
    MAX_STATUS_BYTES,
    worker_ids,
)
from inferflux.common.contract.requests.adapters import MAX_ADAPTERS
from inferflux.v1 import engine_pb2, host_pb2, model_pb2
from inferflux.worker.files.adapter_file import AdapterFile
from inferflux.worker.files.device_wish import NO_WISH, DeviceWish
from inferflux.worker.files.mmproj_file import Projection
from inferflux.worker.files.model_file import ModelFile
from inferflux.worker.files.needs import Needs

# What a model's message may grow by when it is loaded: worker id, times, what the engine learns.
_NUMBERS_BYTES = 160
# Around each adapter's card.
_ENTRY_BYTES = 4
_GIB = 1 << 30
_MIB = 1 << 20
# States in which a model takes memory.
_HELD = frozenset(
    {model_pb2.MODEL_STATE_LOADING, model_pb2.MODEL_STATE_READY, model_pb2.MODEL_STATE_UNLOADING}
)


@dataclass(frozen=True, slots=True)
class AdapterWish:
    """A LoRA file that is to be an adapter of a model, and by how much its changes are multiplied."""

    name: str
    path: Path
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Wish:
    """How a model is to be served.

    Attributes:
        name: what clients call it.
        aliases: other names of it.
        is_pinned: it is loaded at the start, and not unloaded to make room.
        is_own: the settings of the process name it: it has their draft model, and their disk folder itself.
        context_length, slots, kv_cells, kv_bytes: None: as the host's settings say.
        devices: what is None in it: as the host's settings say.
        is_deterministic: whether requests that leave it open are; None: as the host's settings say.
        mmproj: its projector for images; None: it takes none.
        draft: the file of its draft model; None: it has none.
        chat_template: the file of its template; None: its own file has it.
        role: unspecified: as the file says.
        adapters: that requests for it may choose.
    """

    name: str
    aliases: tuple[str, ...] = ()
    is_pinned: bool = False
    is_default: bool = False
    context_length: int | None = None
    slots: int | None = None
    kv_cells: int | None = None
    kv_bytes: int | None = None
    is_own: bool = False
    devices: DeviceWish = NO_WISH
    is_deterministic: bool | None = None
    mmproj: Projection | None = None
    draft: ModelFile | None = None
    chat_template: Path | None = None
    role: model_pb2.ModelRole.ValueType = model_pb2.MODEL_ROLE_UNSPECIFIED
    adapters: tuple[AdapterWish, ...] = ()

    @property
    def _sizes(self) -> tuple[int | None, ...]:
        return self.context_length, self.slots, self.kv_cells, self.kv_bytes

    @property
    def has_sizes(self) -> bool:
        """Return whether it asks for a size of its own."""
        return any(size is not None for size in self._sizes)

    @property
    def projector_digest(self) -> str:
        """Empty: it has no projector."""
        return self.mmproj.digest if self.mmproj is not None else ""

    def then(self, later: Wish) -> Wish:
        """This wish with what a later one for the same model says. What that leaves out stays."""
        sized = later if later.has_sizes else self
        return replace(
            sized,
            aliases=later.aliases or self.aliases,
            is_pinned=self.is_pinned or later.is_pinned,
            is_default=self.is_default or later.is_default,
            is_own=self.is_own or later.is_own,
            devices=self.devices.then(later.devices),
            is_deterministic=(
                self.is_deterministic if later.is_deterministic is None else later.is_deterministic
            ),
            mmproj=later.mmproj or self.mmproj,
            draft=later.draft or self.draft,
            role=self.role,
            adapters=tuple({each.name: each for each in (*self.adapters, *later.adapters)}.values()),
        )


@dataclass(slots=True)
class Known:
    """A model that a host knows.

    Attributes:
        needs: what it takes when it is loaded.
        card: what was learnt of it: from its file, and from the engine once it was loaded.
        reason: why it could not be loaded, or why its engine is started again; empty otherwise.
        worker_id: as which worker it is loaded, or is to be; empty otherwise.
        load_s: how long the last load took; 0 before the first.
        was_ready: whether it was ever ready.
        failures: loads one after the other that have failed.
        trials: what its last engine was started with, and what the trials of its start have found.
        retry_unix_ms: when a failed one is tried again without being asked for; 0: it is not.
        adapters: of its files that were checked, by name.
        is_forgotten: it is not known any more as soon as it is unloaded.
    """

    wish: Wish
    file: ModelFile
    needs: Needs
    card: model_pb2.ModelCard
    state: model_pb2.ModelState.ValueType = model_pb2.MODEL_STATE_REGISTERED
    since_unix_ms: int = 0
    reason: str = ""
    worker_id: str = ""
    load_s: float = 0.0
    was_ready: bool = False
    failures: int = 0
    retry_unix_ms: int = 0
    trials: engine_pb2.EngineConfig | None = None
    adapters: dict[str, AdapterFile] = field(default_factory=dict)
    is_forgotten: bool = False

    @property
    def name(self) -> str:
        return self.wish.name

    @property
    def is_own(self) -> bool:
        return self.wish.is_own

    @property
    def role(self) -> model_pb2.ModelRole.ValueType:
        """The role that it has."""
        return self.wish.role or self.file.facts.role

    @property
    def is_held(self) -> bool:
        """Return whether it takes memory."""
        return self.state in _HELD

    def check_room_for(self, adapter: str) -> None:
        """Raises:
        ResourceExhausted: the model has as many adapters as it may, and none of this name.
        """
        if adapter not in self.adapters and len(self.adapters) >= MAX_ADAPTERS:
            message = f"the model {self.name!r} has {MAX_ADAPTERS} adapters already"
            raise ResourceExhausted(message, reason="TOO_MANY_ADAPTERS")

    def take_adapter(self, adapter: AdapterFile) -> AdapterFile | None:
        """Requests may choose this adapter from now on; returns the one that had its name."""
        former = self.adapters.get(adapter.name)
        self.adapters[adapter.name] = adapter
        self._list_adapters()
        return former

    def drop_adapter(self, name: str) -> AdapterFile:
        """Requests may not choose this adapter any more; returns it.

        Raises:
            NotFound: there is none of this name.
        """
        adapter = self.adapters.pop(name, None)
        if adapter is None:
            message = f"the model {self.name!r} has no adapter {name[:64]!r}"
            raise NotFound(message, reason="UNKNOWN_ADAPTER")
        self._list_adapters()
        return adapter

    def take_projector(self, card: model_pb2.ModelCard) -> None:
        """It has the projector of this card from now on."""
        self.card.takes_images, self.card.takes_audio = card.takes_images, card.takes_audio
        self.card.projector = card.projector

    def _list_adapters(self) -> None:
        self.card.ClearField("adapters")
        self.card.adapters.extend(self.adapters[name].to_card() for name in sorted(self.adapters))

    @property
    def told_bytes(self) -> int:
        """How long the host's status is for this model, at most, without the reason of a failure."""
        return self.to_message(reason_bytes=0).ByteSize() + _NUMBERS_BYTES

    def to_message(self, *, reason_bytes: int = MAX_REASON_BYTES) -> host_pb2.HostedModel:
        """Return what the host reports of it.

        Args:
            reason_bytes: that the reason of a failure is cut to.
        """
        return host_pb2.HostedModel(
            card=self.card,
            state=self.state,
            reason=self.reason.encode()[:reason_bytes].decode(errors="ignore"),
            since_unix_ms=self.since_unix_ms,
            worker_id=self.worker_id,
            needs_bytes=min(self.needs.total, MAX_BYTES),
            is_pinned=self.wish.is_pinned,
            load_s=self.load_s,
            retry_unix_ms=self.retry_unix_ms if self.state == model_pb2.MODEL_STATE_FAILED else 0,
            aliases=self.wish.aliases,
            is_default=self.wish.is_default,
            path=str(self.file.path),
            mmproj_path=str(self.wish.mmproj.path) if self.wish.mmproj is not None else "",
        )


@dataclass(slots=True)
class Catalog:
    """Every model that a host knows, by name.

    Args:
        memory_bytes: that models may take, all of them together.
        models_max: that may be loaded at once.
        is_deterministic: of models whose wish leaves it open.
    """

    host_id: str
    memory_bytes: int
    models_max: int
    is_deterministic: bool = False
    _models: dict[str, Known] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Known]:
        return iter(self._models.values())

    @property
    def free_bytes(self) -> int:
        """Return what no loaded model takes."""
        return self.free_beside({})

    def free_beside(self, on_gpus: Mapping[str, int]) -> int:
        """The same without counting bytes on GPUs, which are given by model."""
        held = (known for known in self if known.is_held)
        taken = sum(max(known.needs.total - on_gpus.get(known.name, 0), 0) for known in held)
        return max(self.memory_bytes - taken, 0)

    def get(self, name: str) -> Known:
        """Raises:
        NotFound: the host does not know it.
        """
        known = self._models.get(name)
        if known is None:
            raise NotFound(f"host {self.host_id} has no model {name[:200]!r}", reason="UNKNOWN_MODEL")
        return known

    def has(self, known: Known) -> bool:
        """Return whether this model, and no later one of its name, is known."""
        return self._models.get(known.name) is known

    def add(self, known: Known) -> Known:
        """Make a model known. One that is known already, of the same file, takes over what the new wish says,
        and where the file is now.

        Args:
            known: with the needs and the card of both wishes together: see `wish_with`.

        Returns:
            The model as it is known from now on.

        Raises:
            AlreadyExists: another model has the name, or has it as an alias.
            ResourceExhausted: the host knows as many as it may.
            InvalidArgument: an alias is another model's name or alias.
            Aborted: it is loaded, and with another projector or none, or not deterministic as is wished.
        """
        self._check_names(known.wish)
        found = self._models.get(known.name)
        if found is not None:
            if found.file.digest != known.file.digest:
                message = f"host {self.host_id} has another model {known.name!r}: {found.file.path}"
                raise AlreadyExists(message, reason="MODEL_NAME_TAKEN")
            if known.wish.role and known.role != found.role:
                message = f"host {self.host_id} has the model {known.name!r} in another role: forget it first"
                raise AlreadyExists(message, reason="MODEL_NAME_TAKEN")
            wish = found.wish.then(known.wish)
            is_seeing_anew = wish.projector_digest != found.wish.projector_digest
            if is_seeing_anew and found.is_held:
                message = f"the model {known.name!r} is loaded, and not with this projector: unload it first"
                raise Aborted(message, reason="MODEL_LOADED")
            was_deterministic = self._is_deterministic(found.wish)
            is_computed_anew = self._is_deterministic(wish) != was_deterministic
            if is_computed_anew and found.is_held:
                is_now = "deterministic" if was_deterministic else "not deterministic"
                message = f"the model {known.name!r} is loaded, and {is_now}: unload it first"
                raise Aborted(message, reason="MODEL_LOADED")
            self._check_size(replace(found, wish=wish))
            found.wish, found.file, found.is_forgotten = wish, known.file, False
            if (known.wish.has_sizes or is_seeing_anew or is_computed_anew) and not found.is_held:
                found.needs = known.needs
            if is_seeing_anew:
                found.take_projector(known.card)
            return found
        if len(self._models) >= MAX_KNOWN:
            message = f"host {self.host_id} knows {MAX_KNOWN} models already"
            raise ResourceExhausted(message, reason="TOO_MANY_MODELS")
        self._check_size(known)
        self._models[known.name] = known
        return known

    def wish_with(self, wish: Wish) -> Wish:
        """A wish for a model together with what was wished for it before."""
        found = self._models.get(wish.name)
        return wish if found is None else found.wish.then(wish)

    def forget(self, name: str) -> Known:
        """The model is not known any more.

        Raises:
            NotFound: it is not.
            Aborted: it is loaded.
        """
        known = self.get(name)
        if known.is_held:
            raise Aborted(f"the model {name!r} is loaded: unload it first", reason="MODEL_LOADED")
        del self._models[name]
        return known

    def take_worker_id(self, known: Known, *, must_fit: bool = True) -> str:
        """A worker id for a model that is to be loaded.

        Raises:
            ResourceExhausted: as many models are loaded as may be, or it does not fit beside them; says both
                numbers.
        """
        held = [other for other in self if other.is_held]
        if len(held) >= self.models_max:
            message = f"host {self.host_id} has {len(held)} models loaded, of at most {self.models_max}"
            raise ResourceExhausted(message, reason="NO_PLACE_FOR_MODEL")
        if must_fit and known.needs.total > self.free_bytes:
            raise ResourceExhausted(
                f"the model {known.name!r} needs {_amount(known.needs.total)} of memory, "
                f"{_amount(self.free_bytes)} of {_amount(self.memory_bytes)} are free on host {self.host_id}",
                reason="NO_MEMORY_FOR_MODEL",
            )
        taken = {other.worker_id for other in self}
        return next(worker_id for worker_id in worker_ids(self.host_id) if worker_id not in taken)

    def check_room_for(self, known: Known, adapter: AdapterFile) -> None:
        """Raises:
        ResourceExhausted: the model has as many adapters as it may, or the host's status would be too long.
        """
        known.check_room_for(adapter.name)
        told = sum(each.told_bytes for each in self) + adapter.to_card().ByteSize() + _ENTRY_BYTES
        if told > MAX_STATUS_BYTES:
            message = f"the names of all models and adapters that host {self.host_id} knows would be too long"
            raise ResourceExhausted(message, reason="TOO_MANY_ADAPTERS")

    def _is_deterministic(self, wish: Wish) -> bool:
        return self.is_deterministic if wish.is_deterministic is None else wish.is_deterministic

    def _check_size(self, changed: Known) -> None:
        """Raises ResourceExhausted where the names of the models would make the host's status too long."""
        models = [known for known in self if known.name != changed.name]
        if sum(known.told_bytes for known in (*models, changed)) > MAX_STATUS_BYTES:
            message = f"the names of all models that host {self.host_id} knows would be too long"
            raise ResourceExhausted(message, reason="TOO_MANY_MODELS")

    def _check_names(self, wish: Wish) -> None:
        others = {
            name for known in self if known.name != wish.name for name in (known.name, *known.wish.aliases)
        }
        if wish.name in others:
            message = f"{wish.name!r} is another name of a model of host {self.host_id}"
            raise AlreadyExists(message, reason="MODEL_NAME_TAKEN")
        for alias in wish.aliases:
            if alias in others or alias == wish.name:
                raise InvalidArgument(f"{alias!r} is a model's name already", field="aliases")


def _amount(n_bytes: int) -> str:
    return f"{n_bytes / _GIB:.2f} GiB" if n_bytes >= _GIB else f"{n_bytes / _MIB:.0f} MiB"
