"""The metadata of a tiny model of each architecture (pure).

Sizes follow llama.cpp's tests/test-llama-archs.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

CONTEXT: Final = 1024
WINDOW: Final = 32
WIDTH: Final = 256
HEADS: Final = 2
FF: Final = 384

_EXPERTS: Final[dict[str, Any]] = {
    "expert_feed_forward_length": FF,
    "expert_shared_feed_forward_length": FF // 2,
    "interleave_moe_layer_step": 2,
    "expert_count": 2,
    "expert_used_count": 2,
    "expert_shared_count": 1,
    "expert_gating_func": 2,
    "expert_weights_scale": 1.0,
    "expert_group_scale": 1.0,
    "experts_per_group": 1,
}
_MLA: Final[dict[str, Any]] = {
    "embedding_length": 128,
    "attention.head_count": 1,
    "attention.head_count_kv": 1,
    "feed_forward_length": 192,
    "attention.q_lora_rank": 512,
    "attention.kv_lora_rank": 512,
    "attention.key_length": 576,
    "attention.value_length": 512,
    "rope.dimension_count": 64,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
}
_DELTA: Final[dict[str, Any]] = {
    "full_attention_interval": 2,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 256,
    "ssm.state_size": 128,
    "ssm.time_step_rank": 2,
    "ssm.group_count": 2,
    "rope.dimension_sections": [32, 32, 32, 32],
}
_SSM: Final[dict[str, Any]] = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 2 * WIDTH,
    "ssm.state_size": 128,
    "ssm.time_step_rank": HEADS,
    "ssm.group_count": 2,
}
# The second layer keeps a state alone.
_HYBRID: Final[dict[str, Any]] = {
    **_SSM,
    "attention.head_count": [HEADS, 0],
    "attention.head_count_kv": [HEADS, 0],
}


@dataclass(frozen=True, slots=True)
class Family:
    """A tiny model.

    Attributes:
        architecture: by llama.cpp's name.
        vocabulary: of llama.cpp's models/ggml-vocab-NAME.gguf, that its models have or one alike.
        runs: models that people run of it.
        needs_it: llama.cpp makes no model of it with another vocabulary.
        fields: metadata below the name of the architecture, beside the usual ones; None leaves one out.
    """

    architecture: str
    vocabulary: str
    runs: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    needs_it: bool = False

    @property
    def metadata(self) -> dict[str, Any]:
        """All fields, without the name of the architecture in front."""
        usual: dict[str, Any] = {
            "context_length": CONTEXT,
            "embedding_length": WIDTH,
            "block_count": 2,
            "feed_forward_length": FF,
            "attention.head_count": HEADS,
            "attention.head_count_kv": HEADS,
            "attention.layer_norm_epsilon": 1e-5,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "leading_dense_block_count": 1,
            "logit_scale": 1.0,
        }
        return {name: value for name, value in (usual | dict(self.fields)).items() if value is not None}


FAMILIES: Final = {
    family.architecture: family
    for family in (
        Family("llama", "llama-bpe", "Llama 2 and 3, SmolLM2, Mistral 7B"),
        Family("qwen2", "qwen2", "Qwen 2 and 2.5"),
        Family("qwen2moe", "qwen2", "Qwen 1.5 and 2 MoE", _EXPERTS),
        Family("qwen3", "qwen2", "Qwen3", {"attention.head_count": 4, "attention.head_count_kv": 1}),
        Family("qwen3moe", "qwen2", "Qwen3 MoE, Qwen3-Coder", _EXPERTS),
        Family("qwen3next", "qwen2", "Qwen3-Next, Qwen3-Coder-Next", _DELTA | _EXPERTS),
        Family("qwen35", "qwen35", "Qwen3.5", _DELTA),
        Family("qwen35moe", "qwen35", "Qwen3.5 MoE", _DELTA | _EXPERTS),
        Family("gemma", "llama-spm", "Gemma"),
        Family("gemma2", "llama-spm", "Gemma 2", {"attention.sliding_window": WINDOW}),
        Family("gemma3", "llama-spm", "Gemma 3", {"attention.sliding_window": WINDOW, "block_count": 6}),
        Family(
            "gemma3n",
            "llama-spm",
            "Gemma 3n",
            {
                "embedding_length": 64,
                "feed_forward_length": 96,
                "attention.head_count": 1,
                "attention.head_count_kv": 1,
                "block_count": 22,
                "attention.sliding_window": WINDOW,
            },
        ),
        Family(
            "gemma4",
            "gemma-4",
            "Gemma 4",
            {
                "embedding_length": 128,
                "feed_forward_length": 192,
                "block_count": 5,
                "embedding_length_per_layer_input": 64,
                "attention.sliding_window": WINDOW,
                "attention.sliding_window_pattern": [True, True, True, True, False],
                "attention.shared_kv_layers": 0,
                "attention.key_length": 64,
                "attention.value_length": 64,
                "attention.key_length_swa": 64,
                "attention.value_length_swa": 64,
                "rope.dimension_count": 64,
                "rope.dimension_count_swa": 64,
                "rope.freq_base_swa": 10_000.0,
            },
        ),
        Family("gpt-oss", "llama-bpe", "gpt-oss", {**_EXPERTS, "attention.sliding_window": WINDOW}),
        Family("glm4", "llama-bpe", "GLM-4"),
        Family("glm4moe", "llama-bpe", "GLM-4.5 to 4.7", _EXPERTS),
        Family("deepseek2", "deepseek-llm", "DeepSeek V2, V3, R1, Kimi K2", _MLA | _EXPERTS),
        Family(
            "mistral3",
            "llama-bpe",
            "Ministral 3",
            {
                "attention.temperature_scale": 0.1,
                "rope.scaling.original_context_length": CONTEXT,
                "rope.dimension_count": WIDTH // HEADS,
            },
        ),
        Family("phi3", "phi-3", "Phi-3, Phi-4 mini", {"attention.sliding_window": 0}, needs_it=True),
        Family("granite", "refact", "Granite 3"),
        Family("granitehybrid", "refact", "Granite 4", _HYBRID),
        Family("lfm2", "llama-bpe", "LFM2", {**_HYBRID, "shortconv.l_cache": 3}),
        Family("lfm2moe", "llama-bpe", "LFM2 MoE", {**_HYBRID, **_EXPERTS, "shortconv.l_cache": 3}),
        Family("mamba", "gpt-neox", "Mamba", _SSM | {"feed_forward_length": 0, "ssm.time_step_rank": 16}),
        Family("mamba2", "gpt-neox", "Mamba 2, Codestral Mamba", _SSM | {"feed_forward_length": 0}),
        Family(
            "falcon-h1",
            "falcon",
            "Falcon-H1",
            _SSM | {"attention.key_length": WIDTH // HEADS, "attention.value_length": WIDTH // HEADS},
        ),
        Family("jamba", "llama-spm", "Jamba", {**_HYBRID, **_EXPERTS}),
        Family(
            "nemotron_h",
            "llama-bpe",
            "Nemotron Nano 2",
            {
                **_SSM,
                "block_count": 3,
                "attention.head_count": [HEADS, 0, HEADS],
                "attention.head_count_kv": [HEADS, 0, 0],
                "feed_forward_length": [0, 0, FF],
            },
        ),
        Family(
            "nemotron_h_moe",
            "llama-bpe",
            "Nemotron 3 Nano",
            {
                **_SSM,
                **_EXPERTS,
                "block_count": 3,
                "attention.head_count": [HEADS, 0, HEADS],
                "attention.head_count_kv": [HEADS, 0, 0],
                "feed_forward_length": [0, 0, FF],
            },
        ),
        Family(
            "rwkv7",
            "gpt-neox",
            "RWKV-7",
            {
                "wkv.head_size": 64,
                "attention.head_count": 0,
                "attention.head_count_kv": 0,
                "attention.decay_lora_rank": 32,
                "attention.iclr_lora_rank": 32,
                "attention.value_residual_mix_lora_rank": 32,
                "attention.gate_lora_rank": 32,
            },
        ),
        Family("minimax-m2", "llama-bpe", "MiniMax M2", _EXPERTS),
        Family("smollm3", "llama-bpe", "SmolLM3"),
        Family("command-r", "command-r", "Command R"),
        Family(
            "cohere2",
            "command-r",
            "Command R7B, Command A",
            {"attention.sliding_window": WINDOW, "block_count": 4},
        ),
        Family("olmo2", "gpt-neox", "OLMo 2"),
        Family(
            "llama4",
            "llama-bpe",
            "Llama 4",
            {**_EXPERTS, "block_count": 4, "attention.sliding_window": WINDOW, "rope.dimension_count": 128},
        ),
        Family("ernie4_5", "llama-spm", "ERNIE 4.5"),
        Family("hunyuan-dense", "qwen2", "Hunyuan"),
        Family("seed_oss", "qwen2", "Seed-OSS"),
        Family("exaone4", "llama-bpe", "EXAONE 4", {"attention.sliding_window": WINDOW, "block_count": 4}),
        Family("bailingmoe2", "qwen2", "Ling 2, Ring 2", _EXPERTS),
        Family("starcoder2", "starcoder", "StarCoder 2"),
        Family("gpt2", "gpt-2", "GPT-2"),
    )
}
