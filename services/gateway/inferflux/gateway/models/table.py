"""Workers and their models, as heartbeats tell of them (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from inferflux.common.contract.messages.hosts import chosen_digest, worker_ids
from inferflux.v1 import model_pb2, scheduler_pb2

from .hosts import LIVE_S

# A model that no worker has served for this long is forgotten.
REMEMBERED_S = 600.0


@dataclass(slots=True)
class _Worker:
    last_seen_s: float
    state: scheduler_pb2.WorkerState.ValueType
    cards: dict[str, model_pb2.ModelCard]

    def is_as(
        self, state: scheduler_pb2.WorkerState.ValueType, cards: dict[str, model_pb2.ModelCard]
    ) -> bool:
        """Return whether a heartbeat says what the last one said."""
        return state == self.state and cards == self.cards

    def knows(self, name: str) -> bool:
        """Return whether it has the model, and its limits are known."""
        card = self.cards.get(name)
        return card is not None and card.context_length > 0


@dataclass(frozen=True, slots=True)
class _Found:
    """A model's card, which holds from one moment to another while no worker changes."""

    card: model_pb2.ModelCard
    from_s: float
    until_s: float


class ModelTable:
    """Every worker that is known, with its models. `now` is a monotonic time in seconds, passed in."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        # How many workers have each.
        self._digests: Counter[str] = Counter()
        # What `card` found, by name. Asked for every request, of hundreds of workers that seldom change.
        self._found: dict[str, _Found] = {}

    def note(self, status: scheduler_pb2.WorkerStatus, now: float) -> None:
        """Take in a heartbeat."""
        cards = {card.name: self._complete(card) for card in status.models}
        before = self._workers.get(status.worker_id)
        if before is not None and before.is_as(status.state, cards) and now - before.last_seen_s <= LIVE_S:
            del self._workers[status.worker_id]
            before.last_seen_s = now
            self._workers[status.worker_id] = before  # the worker seen least recently comes first
            return
        self._drop(status.worker_id)
        self._workers[status.worker_id] = _Worker(now, status.state, cards)
        self._digests.update(card.digest for card in cards.values())

    def _complete(self, card: model_pb2.ModelCard) -> model_pb2.ModelCard:
        """A worker that still loads its model does not know its limits: those that were told before hold."""
        if card.context_length:
            return card
        known = (worker.cards.get(card.name) for worker in self._workers.values())
        same = (other for other in known if other is not None and other.digest == card.digest)
        return next((other for other in same if other.context_length), card)

    def forget_old(self, now: float) -> None:
        while self._workers:
            worker_id, worker = next(iter(self._workers.items()))
            if now - worker.last_seen_s <= REMEMBERED_S:
                return
            self._drop(worker_id)

    def forget(self, worker_id: str) -> None:
        """Forget a worker; nothing if it is not known."""
        self._drop(worker_id)

    def keep_known(self, host_id: str, models: Collection[str]) -> None:
        """Forget the workers on a host whose models it does not know any more."""
        for worker_id in worker_ids(host_id):
            worker = self._workers.get(worker_id)
            if worker is not None and worker.cards.keys().isdisjoint(models):
                self._drop(worker_id)

    def all_models(self, now: float) -> list[model_pb2.Model]:
        """Every known model by name, with the number of workers that serve it now."""
        names = {name for worker in self._workers.values() for name in worker.cards}
        models = (self.get(name, now) for name in sorted(names))
        return [model for model in models if model is not None]

    def get(self, name: str, now: float) -> model_pb2.Model | None:
        """A model, its card as the best worker has it: ready before others, then seen last."""
        having = [worker for worker in self._workers.values() if name in worker.cards]
        if not having:
            return None
        serving = sum(_is_serving(worker, now) for worker in having)
        meant = _of_chosen_file(having, name, now)
        best = max(meant, key=lambda w: (_is_serving(w, now), w.last_seen_s))
        return model_pb2.Model(card=best.cards[name], workers=serving)

    def card(self, name: str, now: float) -> model_pb2.ModelCard | None:
        """The card of a model that some worker, in whatever state, is there for; None if there is none, or
        none that has ever loaded it: requests are checked by what it then says of its limits.

        A worker that is loading or draining counts: the scheduler holds a request for a while, and a worker
        that restarts its engine is ready again soon. What one of them can do, the model can: the scheduler
        finds that worker.
        """
        found = self._found.get(name)
        if found is not None and found.from_s <= now <= found.until_s:
            return found.card
        live = [w for w in self._workers.values() if w.knows(name) and now - w.last_seen_s <= LIVE_S]
        if not live:
            return None
        # Until then all of them are live.
        until_s = min(worker.last_seen_s for worker in live) + LIVE_S
        live = _of_chosen_file(live, name, now)
        best = max(live, key=lambda w: (w.state == scheduler_pb2.WORKER_STATE_READY, w.last_seen_s))
        card = best.cards[name]
        if not card.can_constrain and any(w.cards[name].can_constrain for w in live):
            capable = model_pb2.ModelCard()
            capable.CopyFrom(card)
            capable.can_constrain = True
            card = capable
        self._found[name] = _Found(card, now, until_s)
        return card

    def live_workers(self, now: float) -> dict[str, frozenset[str]]:
        """Models of every worker that sends heartbeats, by worker id."""
        return {
            worker_id: frozenset(worker.cards)
            for worker_id, worker in self._workers.items()
            if now - worker.last_seen_s <= LIVE_S
        }

    def n_served(self, now: float) -> int:
        """How many models a worker serves now."""
        return len({name for w in self._workers.values() if _is_serving(w, now) for name in w.cards})

    def digests(self) -> set[str]:
        """The digests of every known model."""
        return set(self._digests)

    def has_digest(self, digest: str) -> bool:
        """Return whether a known model has it."""
        return digest in self._digests

    def _drop(self, worker_id: str) -> None:
        self._found.clear()
        worker = self._workers.pop(worker_id, None)
        for card in worker.cards.values() if worker is not None else ():
            self._digests[card.digest] -= 1
            if not self._digests[card.digest]:
                del self._digests[card.digest]


def _is_serving(worker: _Worker, now: float) -> bool:
    return worker.state == scheduler_pb2.WORKER_STATE_READY and now - worker.last_seen_s <= LIVE_S


def _of_chosen_file(workers: list[_Worker], name: str, now: float) -> list[_Worker]:
    """The workers that have a model from the file that its name stands for: see `chosen_digest`."""
    digest = chosen_digest((w.cards[name].digest, not _is_serving(w, now)) for w in workers)
    return [worker for worker in workers if worker.cards[name].digest == digest]
