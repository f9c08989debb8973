import shlex
from pathlib import Path

import gguf
import numpy as np

from tools.bench_pair import parse, write

SMALL = shlex.split(
    "--layers 3 --draft-layers 1 --dim 64 --heads 4 --kv-heads 2 --ff 96 --vocab 320 --quant F32"
)


def test_the_draft_has_the_models_first_layers_and_those_after_them_add_little(tmp_path: Path) -> None:
    out, draft_out = tmp_path / "pair.gguf", tmp_path / "draft.gguf"
    write(parse([*SMALL, "--later", "0.1", "--out", str(out), "--draft-out", str(draft_out)]))
    model, draft = (
        {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}
        for path in (out, draft_out)
    )
    assert {name for name in draft if name.startswith("blk.")} == {
        name for name in model if name.startswith("blk.0.")
    }
    assert all(np.array_equal(values, model[name]) for name, values in draft.items())
    assert model["blk.1.ffn_down.weight"].std() < 0.2 * model["blk.0.ffn_down.weight"].std()
    assert model["blk.1.ffn_up.weight"].std() > 0.8 * model["blk.0.ffn_up.weight"].std()
