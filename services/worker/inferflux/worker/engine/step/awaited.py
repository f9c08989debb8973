"""Sequences that wait for what is made beside the steps: adapters, images, and what DRY needs."""

from __future__ import annotations

from collections.abc import Iterable

from inferflux.common.contract.errors import Unavailable
from inferflux.v1 import engine_pb2, scheduler_pb2
from inferflux.worker.engine.llama.adapters import AdapterBackend, Adapters
from inferflux.worker.engine.media.images import Images, SequenceImages
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.sampling.breakers import BreakerFinder, SpellingVocab

from .parts import Outcome, Part


class AwaitedAdapters(Part):
    """Adapters of sequences: loaded while others run, and freed once no sequence has them."""

    def __init__(self, backend: AdapterBackend) -> None:
        self.adapters = Adapters(backend)
        # Sequences that have one, and those of them that wait for it, with its digest.
        self._having: dict[Sequence, str] = {}
        self._waiting: dict[Sequence, str] = {}
        self._news: list[engine_pb2.EngineAdapterLoaded] = []

    def begin(self, sequence: Sequence, _request: scheduler_pb2.InferenceRequest) -> None:
        digest = sequence.origin.adapter
        if not digest:
            return
        self._having[sequence] = digest
        if self.adapters.has(digest):
            return
        self._waiting[sequence] = digest
        if not self.adapters.is_coming(digest):
            raise _no_adapter("the adapter is not loaded here any more")

    def retire(self, digest: str) -> list[Outcome]:
        """Free an adapter as soon as no request has it; returns those that waited for it."""
        self.adapters.retire(digest)
        if self.adapters.has(digest):
            return []
        error = _no_adapter("the adapter was removed")
        return [Outcome(sequence, error) for sequence in self._waiting_for(digest)]

    def poll(self, _now_s: float) -> Iterable[Outcome]:
        ends: list[Outcome] = []
        if self.adapters.is_busy:
            for loaded in self.adapters.poll():
                self._news.append(loaded)
                for sequence in self._waiting_for(loaded.digest):
                    if loaded.error:
                        ends.append(Outcome(sequence, _no_adapter(f"the adapter: {loaded.error}")))
                    else:
                        del self._waiting[sequence]
        if self.adapters.has_retired:
            self.adapters.free_unused(set(self._having.values()))
        return ends

    @property
    def holds(self) -> dict[Sequence, str]:
        return self._waiting

    @property
    def is_busy(self) -> bool:
        return self.adapters.is_busy or (self.adapters.has_retired and not self._having)

    @property
    def has_news(self) -> bool:
        """True if one was loaded, or could not be."""
        return bool(self._news)

    def end(self, sequence: Sequence) -> None:
        self._having.pop(sequence, None)
        self._waiting.pop(sequence, None)

    def stats(self, step: engine_pb2.StepReport) -> None:
        step.adapters.extend(self._news)
        self._news = []

    def close(self) -> None:
        self.adapters.close()

    def _waiting_for(self, digest: str) -> list[Sequence]:
        return [sequence for sequence, awaited in self._waiting.items() if awaited == digest]


class AwaitedImages(Part):
    """Images of prompts: asked for, and encoded while others run."""

    def __init__(self, images: Images) -> None:
        self.images = images
        self._waiting: list[Sequence] = []
        self._wanted: list[str] = []

    def of(self, request: scheduler_pb2.InferenceRequest) -> SequenceImages | None:
        """The images of a new sequence; None: it has none."""
        return self.images.begin(request.images) if request.images else None

    def begin(self, sequence: Sequence, _request: scheduler_pb2.InferenceRequest) -> None:
        if not sequence.images.is_ready:
            self._waiting.append(sequence)
            self._wanted.extend(self.images.take_wanted())

    def poll(self, _now_s: float) -> Iterable[Outcome]:
        if not self._waiting:
            return ()
        self.images.settle()
        self._waiting = [sequence for sequence in self._waiting if not sequence.images.is_ready]
        return [Outcome(each, _no_image(why)) for each in self._waiting if (why := each.images.error)]

    @property
    def holds(self) -> list[Sequence]:
        return self._waiting

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting)

    def end(self, sequence: Sequence) -> None:
        if sequence in self._waiting:
            self._waiting.remove(sequence)

    def stats(self, step: engine_pb2.StepReport) -> None:
        step.wanted_images.extend(self._wanted)
        self._wanted = []
        self.images.write_stats(step.stats)

    def close(self) -> None:
        self.images.close()


class AwaitedBreakers(Part):
    """Sequence breakers of DRY: found in the vocabulary while others run."""

    def __init__(self, vocab: SpellingVocab) -> None:
        self.finder = BreakerFinder(vocab)
        self._waiting: list[Sequence] = []

    def begin(self, sequence: Sequence, _request: scheduler_pb2.InferenceRequest) -> None:
        if not sequence.sampler.is_ready:
            self._waiting.append(sequence)

    def poll(self, _now_s: float) -> Iterable[Outcome]:
        if self._waiting:
            self._waiting = [sequence for sequence in self._waiting if not sequence.sampler.is_ready]
        return ()

    @property
    def holds(self) -> list[Sequence]:
        return self._waiting

    def end(self, sequence: Sequence) -> None:
        if sequence in self._waiting:
            self._waiting.remove(sequence)

    def close(self) -> None:
        self.finder.close()


def _no_adapter(why: str) -> Unavailable:
    return Unavailable(why, reason="ADAPTER_NOT_LOADED", retry_delay_s=None)


def _no_image(why: str) -> Unavailable:
    return Unavailable(f"an image of the prompt: {why}", reason="IMAGE_UNAVAILABLE", retry_delay_s=None)
