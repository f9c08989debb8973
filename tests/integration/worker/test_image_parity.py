"""Images and sounds of each kind of projector: the engine computes what libmtmd's own loop computes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.gguf_files import DIM, Gguf
from harness.model_kinds import seeing_model, sliding_window_model
from harness.projectors import (
    audio_projector,
    non_causal_projector,
    plane_projector,
    sized_projector,
    sliced_projector,
    tiny_projector,
    tone,
)
from harness.serving import Served, load
from harness.worker import batch_item

from inferflux.common.contract.requests.images import image_id
from inferflux.common.contract.requests.sounds import unpacked_sound
from inferflux.common.llama.native import llama
from inferflux.gateway.images.sound_decoder import decode, split
from inferflux.gateway.tokenizer.tokenizer import PromptIds, Tokenizer
from inferflux.gateway.tokenizer.tokenizer_fault import TokenizerFaultError
from inferflux.v1 import engine_pb2, inference_pb2, tokenizer_pb2, worker_pb2
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.files.mmproj_file import read_projection

pytestmark = pytest.mark.long

KINDS: dict[str, tuple[Callable[[], Gguf], Callable[[int], Gguf]]] = {
    "fixed": (seeing_model, tiny_projector),
    "non-causal": (seeing_model, non_causal_projector),
    "non-causal in a window": (sliding_window_model, non_causal_projector),
    "sized": (seeing_model, sized_projector),
    "sliced": (seeing_model, sliced_projector),
    "plane": (partial(seeing_model, "qwen2vl"), plane_projector),
    "sounds": (seeing_model, audio_projector),
    "sounds in a plane": (partial(seeing_model, "qwen2vl"), audio_projector),
}
N_GENERATED = 4
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_PERTURB = -1, -3, -6  # of mallopt(3)
N_TOP = 20


@dataclass(slots=True)
class Picture:
    """Pixels, and their names; a tone instead for a model that takes audio."""

    seed: int
    width: int
    height: int

    @property
    def rgb(self) -> bytes:
        draw = np.random.default_rng(self.seed)
        return draw.integers(0, 256, 3 * self.width * self.height, np.uint8).tobytes()

    @property
    def file(self) -> bytes:
        return tone(self.width / 100, 300.0 * self.seed)


class World:
    """A model with a projector, served by an engine, and a gateway's tokenizer for it."""

    def __init__(self, kind: str, folder: Path, **options: Any) -> None:
        model, make = KINDS[kind]
        path, mmproj = folder / "m.gguf", folder / "mmproj.gguf"
        self._path = path
        path.write_bytes(model().data())
        mmproj.write_bytes(make(DIM).data())
        self.backend: Backend = load(path, mmproj_path=str(mmproj), **options)
        self.served = Served(self.backend)
        self.takes_audio = self.backend.projector is not None and self.backend.projector.takes_audio
        self.tokenizer = Tokenizer(path, max_rendered_bytes=1 << 20)
        self._skeleton = folder / "skeleton.gguf"
        self._skeleton.write_bytes(read_projection(mmproj, field="mmproj").skeleton)

    def prompt(self, before: str, *rest: Picture | str) -> PromptIds:
        """Texts and pictures, a line each."""
        message = inference_pb2.ChatMessage(role="user")
        for part in (before, *rest):
            if isinstance(part, str):
                message.parts.add(text=part)
            else:
                message.parts.add(image=inference_pb2.ImageInput())
        pictures = [part for part in rest if isinstance(part, Picture)]
        stored = [self.store(picture) for picture in pictures]
        rendered = self.tokenizer.render([message])
        return self.tokenizer.tokenize_rendered(rendered, 0, stored, self._skeleton)

    def store(self, picture: Picture) -> tokenizer_pb2.StoredMedia:
        """What a gateway does with a picture, or a tone."""
        id_ = image_id(picture.rgb)
        image = engine_pb2.EngineImage(object=f"{id_}.1", width=picture.width, height=picture.height)
        stored = tokenizer_pb2.StoredMedia(width=picture.width, height=picture.height)
        if self.takes_audio:
            stored, packed = split(decode(picture.file, self._skeleton, self._path, most_s=60))
            image.pcm = unpacked_sound(packed).pcm
        else:
            image.rgb = picture.rgb
        self.served.pictures[image.object] = image
        stored.id, stored.object = id_, image.object
        return stored

    def item(self, name: str, prompt: PromptIds, *, n: int = N_GENERATED) -> worker_pb2.BatchItem:
        item = batch_item(name, prompt=prompt.ids, max_tokens=n)
        item.request.images.extend(prompt.images)
        item.request.params.sampling.logprobs = N_TOP
        return item

    def answer(self, name: str) -> list[tuple[int, dict[int, float]]]:
        """Each token of an answer, and the likely ones in its place."""
        chunks = [chunk for chunk in self.served.chunks if chunk.request_id == name]
        return [
            (each.chosen.token_id, {top.token_id: top.logprob for top in each.top})
            for chunk in chunks
            for each in chunk.logprobs
        ]


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(request.param, tmp_path)


class Reference:
    """libmtmd's own loop on a context of its own."""

    def __init__(self, backend: Backend) -> None:
        assert backend.projector is not None
        self._mtmd, self._model = backend.projector._mtmd, backend._model
        self._vocabulary = backend.vocab.size
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 4096, 512, 512
        params.n_threads = params.n_threads_batch = 1
        params.flash_attn_type = 1
        self._context = llama.llama_init_from_model(self._model, params)
        self._past = 0

    def close(self) -> None:
        llama.llama_free(self._context)

    def text(self, ids: list[int]) -> np.ndarray[Any, Any]:
        """Log-probabilities after the last of these tokens."""
        row = np.empty(0)
        for token in ids:
            held = (ctypes.c_int32 * 1)(token)
            batch = llama.llama_batch_get_one(held, 1)
            batch.pos = (ctypes.c_int32 * 1)(self._past)
            assert llama.llama_decode(self._context, batch) == 0
            self._past += 1
            pointer = llama.llama_get_logits_ith(self._context, -1)
            row = np.ctypeslib.as_array(pointer, (self._vocabulary,)).astype(np.float64)
        shifted: np.ndarray[Any, Any] = row - row.max()
        return shifted - float(np.log(np.exp(shifted).sum()))

    def image(self, picture: Picture) -> None:
        library = self._mtmd.library
        if self._mtmd.takes_audio:
            file = (ctypes.c_uint8 * len(picture.file)).from_buffer_copy(picture.file)
            bitmap = library.mtmd_helper_bitmap_init_from_buf(self._mtmd.context, file, len(file), False)
        else:
            rgb = (ctypes.c_uint8 * len(picture.rgb)).from_buffer_copy(picture.rgb)
            bitmap = library.mtmd_bitmap_init(picture.width, picture.height, rgb)
        chunks = library.mtmd_input_chunks_init()
        marker = library.mtmd_get_marker(self._mtmd.context)
        text = library.mtmd_input_text(
            text=marker, text_len=len(marker), add_special=False, parse_special=True
        )
        bitmaps = (ctypes.c_void_p * 1)(bitmap)
        assert library.mtmd_tokenize(self._mtmd.context, chunks, ctypes.byref(text), bitmaps, 1) == 0
        past = ctypes.c_int32()
        done = library.mtmd_helper_eval_chunks(
            self._mtmd.context, self._context, chunks, self._past, 0, 512, False, ctypes.byref(past)
        )
        assert done == 0
        self._past = past.value
        library.mtmd_input_chunks_free(chunks)
        library.mtmd_bitmap_free(bitmap)


@pytest.fixture
def reference(world: World) -> Iterator[Reference]:
    made = Reference(world.backend)
    yield made
    made.close()


def agrees(answer: list[tuple[int, dict[int, float]]], reference: Reference, row: Any) -> None:
    """The likely tokens of each place are as likely by the reference, which is given the same tokens."""
    assert len(answer) == N_GENERATED
    for token, top in answer:
        assert max(abs(row[each] - logprob) for each, logprob in top.items()) < 0.02
        row = reference.text([token])


ONE, TWO = Picture(1, 150, 90), Picture(2, 64, 200)


def texts_of(world: World, text: str) -> list[int]:
    return world.tokenizer.tokenize_rendered(
        world.tokenizer.render([inference_pb2.ChatMessage(role="user", content=text)]), 0
    ).ids


def test_what_follows_images_is_as_likely_as_by_libmtmd(world: World, reference: Reference) -> None:
    prompt = world.prompt("hello there", ONE, "and", TWO, "what is it?")
    world.served.run(world.item("r", prompt))
    assert len(world.answer("r")) == N_GENERATED  # else the engine may still encode: two threads may not
    reference.text(texts_of(world, "hello there\n"))
    reference.image(ONE)
    reference.text(texts_of(world, "\nand\n")[1:])
    reference.image(TWO)
    row = reference.text(texts_of(world, "\nwhat is it?")[1:])
    agrees(world.answer("r"), reference, row)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("sounds")])
def test_an_image_of_any_shape_is_counted_and_encoded_or_refused_before(kind: str, tmp_path: Path) -> None:
    world = World(kind, tmp_path)
    shapes = [(1, 1), (1, 2000), (2000, 1), (1536, 1), (3, 900), (65535, 1), (127, 2), (129, 2)]
    n_taken = 0
    for i, (width, height) in enumerate(shapes):
        try:
            prompt = world.prompt("hello", Picture(i, width, height), "what is it?")
        except TokenizerFaultError as error:
            assert error.fault == tokenizer_pb2.TOKENIZER_FAULT_BAD_IMAGE  # noqa: PT017 - either way is right
            continue
        world.served.run(world.item(f"r{i}", prompt))
        assert len(world.answer(f"r{i}")) == N_GENERATED, (width, height)
        n_taken += 1
    assert n_taken


def leave_nans() -> None:
    """Allocate and free memory of many sizes, filled with bytes that make numbers of it that are none."""
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    largest = 8 << 20
    libc.mallopt(M_MMAP_THRESHOLD, 4 * largest)
    libc.mallopt(M_TRIM_THRESHOLD, 64 * largest)
    libc.mallopt(M_PERTURB, 0xFF)
    sizes = [1 << n for n in range(12, 23)] * 20 + list(range(8192, 200 * 8192, 8192))
    for held in [libc.malloc(size) for size in [*sizes, largest]]:
        libc.free(held)
    libc.mallopt(M_PERTURB, 0)


def test_memory_that_others_have_left_behind_spoils_no_image(world: World) -> None:
    """Pixtral's graph begins with some that were never written to."""
    images = world.served.engine._images.images
    assert images._thread is not None
    images._thread.submit(leave_nans).result()
    world.served.run(world.item("r", world.prompt("hello there", ONE, "and", TWO, "what is it?")))
    assert len(world.answer("r")) == N_GENERATED


def test_the_image_decides_what_follows(world: World) -> None:
    other = Picture(3, ONE.width, ONE.height)
    for name, picture in (("a", ONE), ("b", other)):
        world.served.run(world.item(name, world.prompt("hello there", picture, "what?")))
    (_, first), (_, second) = world.answer("a")[0], world.answer("b")[0]
    assert any(abs(first.get(token, -99.0) - logprob) > 0.05 for token, logprob in second.items())


def test_what_is_cached_or_was_preempted_changes_no_answer(world: World) -> None:
    served = world.served
    prompt = world.prompt("hello there, hello there, hello there", ONE, "what is it that you see?")
    longer = world.prompt(
        "hello there, hello there, hello there", ONE, "what is it that you know?", TWO, "and?"
    )
    served.run(world.item("first", prompt))
    served.check_cells()
    served.run(world.item("again", prompt), world.item("longer", longer))
    served.check_cells()
    assert world.answer("again")[0][0] == world.answer("first")[0][0]
    first_image = prompt.images[0].position
    if world.backend.projector is not None and world.backend.projector.has_plane:
        assert 0 < served.cached["longer"] <= first_image
    else:
        assert served.cached["longer"] > first_image + prompt.images[0].tokens

    fresh = World.item(world, "kept", prompt, n=12)
    served.start_and_step(fresh, until_tokens=4)
    served.check_cells()
    served.swap_out("t.kept")
    served.resume("t.kept", 0)
    served.finish("kept")
    served.check_cells()
    alone = World.item(world, "alone", prompt, n=12)
    served.run(alone)
    assert served.swap_ins == 1
    kept, straight = world.answer("kept"), world.answer("alone")
    assert [token for token, _ in kept] == [token for token, _ in straight]
