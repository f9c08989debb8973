"""A projector for images of random weights, and pictures: what an answer says of them means nothing."""

from __future__ import annotations

import io
import wave

import numpy as np
from PIL import Image

from .gguf_files import Gguf, Tensor, array, boolean, f32, text, u32

IMAGE_SIDE = 64
PATCH = 16
IMAGE_TOKENS = (IMAGE_SIDE // PATCH) ** 2
AUDIO_TOKENS = 375
"""Of each begun half minute of a sound."""
_WIDTH = 64
_FF = 128
_LAYERS = 2
_F32_KIND = 6


def tiny_projector(model_width: int, *, seed: int = 5, kind: str = "mlp") -> Gguf:
    """LLaVA's: a vision transformer of two layers and two linear ones, 16 tokens for any image.

    Args:
        model_width: numbers of an embedding of the model that it is for.
        kind: the type of projector that the file says it is.
    """
    draw = np.random.default_rng(seed)

    def weights(*shape: int, scale: float = 0.2) -> Tensor:
        return Tensor(draw.normal(0, scale, shape).astype(np.float32))

    def floats(*values: float) -> bytes:
        return array(_F32_KIND, len(values), np.array(values, "<f4").tobytes())

    metadata = {
        "general.architecture": text("clip"),
        "clip.has_vision_encoder": boolean(1),
        "clip.projector_type": text(kind),
        "clip.vision.embedding_length": u32(_WIDTH),
        "clip.vision.feed_forward_length": u32(_FF),
        "clip.vision.block_count": u32(_LAYERS),
        "clip.vision.projection_dim": u32(model_width),
        "clip.vision.attention.head_count": u32(2),
        "clip.vision.attention.layer_norm_epsilon": f32(1e-5),
        "clip.vision.image_size": u32(IMAGE_SIDE),
        "clip.vision.patch_size": u32(PATCH),
        "clip.vision.image_mean": floats(0.5, 0.5, 0.5),
        "clip.vision.image_std": floats(0.5, 0.5, 0.5),
        "clip.use_gelu": boolean(1),
    }
    ones, zeros = np.ones(_WIDTH, np.float32), np.zeros(_WIDTH, np.float32)
    tensors = {
        "v.patch_embd.weight": weights(_WIDTH, 3, PATCH, PATCH, scale=0.1),
        "v.position_embd.weight": weights(IMAGE_TOKENS, _WIDTH),
        "v.post_ln.weight": Tensor(ones),
        "v.post_ln.bias": Tensor(zeros),
        "mm.0.weight": weights(_FF, _WIDTH),
        "mm.0.bias": weights(_FF),
        "mm.2.weight": weights(model_width, _FF),
        "mm.2.bias": weights(model_width),
    }
    for i in range(_LAYERS):
        block = f"v.blk.{i}"
        for name in ("ln1", "ln2"):
            tensors[f"{block}.{name}.weight"] = Tensor(ones)
            tensors[f"{block}.{name}.bias"] = Tensor(zeros)
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            tensors[f"{block}.{name}.weight"] = weights(_WIDTH, _WIDTH)
            tensors[f"{block}.{name}.bias"] = Tensor(zeros)
        tensors[f"{block}.ffn_up.weight"] = weights(_FF, _WIDTH)
        tensors[f"{block}.ffn_up.bias"] = Tensor(np.zeros(_FF, np.float32))
        tensors[f"{block}.ffn_down.weight"] = weights(_WIDTH, _FF)
        tensors[f"{block}.ffn_down.bias"] = Tensor(zeros)
    return Gguf(metadata, tensors)


def non_causal_projector(model_width: int, *, pooled: int = 1) -> Gguf:
    """Gemma 3's: the cells of an image look at each other. Of `pooled` by `pooled` patches one becomes."""
    return _changed(
        "gemma3",
        {
            "mm.input_projection.weight": _drawn(_WIDTH, model_width),
            "mm.soft_emb_norm.weight": Tensor(np.ones(_WIDTH, np.float32)),
        },
        {"clip.vision.projector.scale_factor": u32(pooled)},
        model_width,
    )


def sized_projector(model_width: int) -> Gguf:
    """Pixtral's: an image has a token for each patch, and one more for each row but the last."""
    return _changed(
        "pixtral",
        {
            "mm.1.weight": _drawn(_FF, _WIDTH),
            "mm.2.weight": _drawn(model_width, _FF),
            "v.token_embd.img_break": _drawn(model_width),
        },
        {},
        model_width,
        without=("v.patch_embd.bias", "v.position_embd.weight", "v.post_ln.weight", "v.post_ln.bias"),
    )


def sliced_projector(model_width: int) -> Gguf:
    """Idefics 3's: an image is an overview of 16 tokens and slices of 16 each, texts between them."""
    return _changed(
        "idefics3",
        {
            "mm.model.fc.weight": _drawn(model_width, 4 * _WIDTH),
            "v.position_embd.weight": _drawn(4 * IMAGE_TOKENS, _WIDTH),
        },
        {
            "clip.vision.image_size": u32(2 * IMAGE_SIDE),
            "clip.vision.projector.scale_factor": u32(2),
            "clip.vision.preproc_image_size": u32(4 * IMAGE_SIDE),
        },
        model_width,
    )


def plane_projector(model_width: int) -> Gguf:
    """Qwen2-VL's: an image's cells lie in a plane (M-RoPE), and are as many as its size says."""
    merged = 4 * _WIDTH
    return _changed(
        "qwen2vl_merger",
        {
            "v.patch_embd.weight.1": _drawn(_WIDTH, 3, PATCH, PATCH, scale=0.1),
            "mm.0.weight": _drawn(merged, merged),
            "mm.0.bias": _drawn(merged),
            "mm.2.weight": _drawn(model_width, merged),
            "mm.2.bias": _drawn(model_width),
        },
        {},
        model_width,
        without=("v.position_embd.weight",),
    )


def deepseek_projector(model_width: int) -> Gguf:
    """DeepSeek-V4's: how many cells an image has depends on where in the prompt it begins."""
    marks = ("v.image_newline", *(f"v.token_embd.img_{mark}" for mark in ("start", "end", "pad")))
    return _changed(
        "deepseek4v",
        {
            **{name: _drawn(model_width) for name in marks},
            "mm.1.weight": _drawn(model_width, 4 * _WIDTH),
            "mm.1.bias": _drawn(model_width),
            "mm.2.weight": _drawn(model_width, model_width),
            "mm.2.bias": _drawn(model_width),
        },
        {"clip.vision.projector.scale_factor": u32(2), "clip.vision.image_min_pixels": u32(2)},
        model_width,
    )


def hunyuan_projector(model_width: int) -> Gguf:
    """HunyuanVL's: cells have positions in four dimensions, one of them the image's number."""
    marks = ("mm.image_begin", "mm.image_end", "v.image_newline")
    names = ("mm.model.fc.bias", "mm.pre_norm.weight", "mm.post_norm.weight", *marks)
    return _changed(
        "hunyuanvl",
        {
            **{name: _drawn(model_width) for name in names},
            "mm.0.weight": _drawn(_FF, _WIDTH),
            "mm.0.bias": _drawn(_FF),
            "mm.2.weight": _drawn(model_width, _FF),
            "mm.2.bias": _drawn(model_width),
            "mm.model.fc.weight": _drawn(model_width, model_width),
        },
        {},
        model_width,
    )


def aborting_projector(model_width: int) -> Gguf:
    """Kimi-K2.5's without its scale: images are laid out, and libmtmd ends the process that encodes one."""
    norms = ("mm.input_norm.weight", "mm.input_norm.bias", "mm.1.bias")
    tensors = {name: _drawn(_WIDTH) for name in norms}
    return _changed(
        "kimik25",
        {
            **tensors,
            "mm.1.weight": _drawn(_WIDTH, _WIDTH),
            "mm.2.weight": _drawn(model_width, _WIDTH),
            "mm.2.bias": _drawn(model_width),
        },
        {},
        model_width,
    )


def audio_projector(model_width: int) -> Gguf:
    """Ultravox's: a whisper encoder of one layer; each begun half minute of a sound is a run of its own."""
    width, mel, stack = 32, 80, 4
    draw = np.random.default_rng(11)

    def weights(*shape: int, scale: float = 0.2) -> Tensor:
        return Tensor(draw.normal(0, scale, shape).astype(np.float32))

    metadata = {
        "general.architecture": text("clip"),
        "clip.has_audio_encoder": boolean(1),
        "clip.projector_type": text("ultravox"),
        "clip.audio.embedding_length": u32(width),
        "clip.audio.feed_forward_length": u32(_FF),
        "clip.audio.block_count": u32(1),
        "clip.audio.projection_dim": u32(model_width),
        "clip.audio.attention.head_count": u32(2),
        "clip.audio.attention.layer_norm_epsilon": f32(1e-5),
        "clip.audio.num_mel_bins": u32(mel),
        "clip.audio.projector.stack_factor": u32(stack),
    }
    ones, zeros = Tensor(np.ones(width, np.float32)), Tensor(np.zeros(width, np.float32))
    tensors = {
        "a.conv1d.1.weight": weights(width, mel, 3),
        "a.conv1d.1.bias": weights(width, 1),
        "a.conv1d.2.weight": weights(width, width, 3),
        "a.conv1d.2.bias": weights(width, 1),
        "a.position_embd.weight": weights(1500, width),
        "a.post_ln.weight": ones,
        "a.post_ln.bias": zeros,
        "mm.a.norm_pre.weight": Tensor(np.ones(width * stack, np.float32)),
        "mm.a.mlp.1.weight": weights(_FF, width * stack),
        "mm.a.norm_mid.weight": Tensor(np.ones(_FF // 2, np.float32)),
        "mm.a.mlp.2.weight": weights(model_width, _FF // 2),
    }
    for name in ("ln1", "ln2"):
        tensors[f"a.blk.0.{name}.weight"], tensors[f"a.blk.0.{name}.bias"] = ones, zeros
    for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
        tensors[f"a.blk.0.{name}.weight"] = weights(width, width)
        if name != "attn_k":
            tensors[f"a.blk.0.{name}.bias"] = zeros
    tensors["a.blk.0.ffn_up.weight"] = weights(_FF, width)
    tensors["a.blk.0.ffn_up.bias"] = Tensor(np.zeros(_FF, np.float32))
    tensors["a.blk.0.ffn_down.weight"] = weights(width, _FF)
    tensors["a.blk.0.ffn_down.bias"] = zeros
    return Gguf(metadata, tensors)


def mixed_projector(model_width: int, *, seed: int = 5) -> Gguf:
    """LLaVA's and Ultravox's in one file."""
    sees, listens = tiny_projector(model_width, seed=seed), audio_projector(model_width)
    kinds = {"clip.vision.projector_type": text("mlp"), "clip.audio.projector_type": text("ultravox")}
    metadata = {**sees.metadata, **listens.metadata, **kinds}
    del metadata["clip.projector_type"]
    return Gguf(metadata, {**sees.tensors, **listens.tensors})


def tone(seconds: float, hertz: float = 440.0, *, rate: int = 16000) -> bytes:
    """The WAV file of a tone."""
    out = io.BytesIO()
    times = np.arange(int(seconds * rate)) / rate
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((12_000 * np.sin(2 * np.pi * hertz * times)).astype("<i2").tobytes())
    return out.getvalue()


def _drawn(*shape: int, scale: float = 0.2) -> Tensor:
    return Tensor(np.random.default_rng(len(shape) + sum(shape)).normal(0, scale, shape).astype(np.float32))


def _changed(
    kind: str,
    tensors: dict[str, Tensor],
    metadata: dict[str, bytes],
    model_width: int,
    *,
    without: tuple[str, ...] = (),
) -> Gguf:
    """LLaVA's vision transformer under a projector of another kind."""
    plain = tiny_projector(model_width, kind=kind)
    kept = {
        name: tensor
        for name, tensor in plain.tensors.items()
        if not name.startswith("mm.") and name not in without
    }
    return Gguf({**plain.metadata, **metadata}, {**kept, **tensors})


def picture(seed: int = 1, *, width: int = 80, height: int = 60, form: str = "PNG") -> bytes:
    """The file of a picture of coloured squares, each seed another one."""
    draw = np.random.default_rng(seed)
    squares = draw.integers(0, 256, (4, 4, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(squares).resize((width, height), Image.Resampling.NEAREST).save(out, form)
    return out.getvalue()
