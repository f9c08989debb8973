"""Types in which matrices of a converted model can be stored."""

from __future__ import annotations

from enum import StrEnum


class OutType(StrEnum):
    """As gguf names them. K-quants are not among them: gguf cannot write them."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q5_1 = "q5_1"
    Q5_0 = "q5_0"
    Q4_1 = "q4_1"
    Q4_0 = "q4_0"
