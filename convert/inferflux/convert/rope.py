"""Rotary position embedding (RoPE), and its scaling to longer contexts."""

from __future__ import annotations

import math

import gguf
import numpy as np

from .fields import Fields
from .safetensors import Weights


class Rope:
    """RoPE parameters in config.json: `rope_theta` and `rope_scaling`, or both in `rope_parameters`.

    Raises:
        ConversionError: a kind of scaling that llama.cpp does not have for all models.
    """

    def __init__(self, config: Fields, head_dim: int) -> None:
        parameters = config.inner("rope_parameters")
        scaling = parameters or config.inner("rope_scaling") or Fields({}, config.said)
        base = parameters if parameters is not None and "rope_theta" in parameters else config
        self.base = base.number("rope_theta", 10_000.0)
        self._head_dim = head_dim
        self._scaling = scaling
        self.kind = scaling.text("rope_type", scaling.text("type", "default"))
        if self.kind not in ("default", "linear", "yarn", "llama3"):
            known = "default, linear, yarn and llama3"
            raise scaling.error("rope_type", f"{self.kind[:40]!r} is not known: there are {known}")
        self._factor = 1.0 if self.kind == "default" else scaling.number("factor")
        self._trained = 0
        if self.kind in ("yarn", "llama3"):
            trained = config.integer("max_position_embeddings")
            self._trained = scaling.integer("original_max_position_embeddings", trained)
        self._low, self._high = 1.0, 4.0
        if self.kind == "llama3":
            self._low, self._high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
            if self._low >= self._high:
                raise scaling.error("high_freq_factor", "it is not above low_freq_factor")
        for name in ("attention_factor", "mscale", "mscale_all_dim"):
            if self.kind == "yarn" and name in scaling:
                raise scaling.error(name, "it is not converted")

    def describe(self, writer: gguf.GGUFWriter) -> None:
        """Write the metadata."""
        writer.add_rope_dimension_count(self._head_dim)
        writer.add_rope_freq_base(self.base)
        if self.kind == "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(self._factor)
        elif self.kind == "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(self._factor)
            writer.add_rope_scaling_orig_ctx_len(self._trained)
            if "beta_fast" in self._scaling:
                writer.add_rope_scaling_yarn_beta_fast(self._scaling.number("beta_fast"))
            if "beta_slow" in self._scaling:
                writer.add_rope_scaling_yarn_beta_slow(self._scaling.number("beta_slow"))

    def factors(self) -> Weights | None:
        """Divisor of each frequency in Llama 3.1's scaling; None for other kinds.

        High frequencies stay, low ones are divided by the factor, those between by a blend of both.
        """
        if self.kind != "llama3":
            return None
        frequencies = self.base ** -(np.arange(0, self._head_dim, 2, dtype=np.float64) / self._head_dim)
        turns = self._trained * frequencies / (2 * math.pi)
        blend = np.clip((turns - self._low) / (self._high - self._low), 0.0, 1.0)
        divided: Weights = (1 / ((1 - blend) / self._factor + blend)).astype(np.float32)
        return divided
