"""Sources of models are read as they are written, and what is no GGUF is refused by its name."""

from __future__ import annotations

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.models.model_sources import (
    SourceKind,
    choose,
    choose_projector,
    parse_source,
    shards_of,
)

WEB, PATH, HF, OCI = SourceKind.WEB, SourceKind.PATH, SourceKind.HUGGING_FACE, SourceKind.OCI


@pytest.mark.parametrize(
    ("text", "kind", "place", "which", "name"),
    [
        ("https://h.example/a/x-Q4.gguf?sig=1", WEB, "https://h.example/a/x-Q4.gguf?sig=1", "", "x-Q4"),
        ("file:/models/x.gguf", PATH, "/models/x.gguf", "", "x"),
        ("file:///models/x", PATH, "/models/x", "", "x"),
        ("/models/x-00001-of-00002.gguf", PATH, "/models/x-00001-of-00002.gguf", "", "x"),
        ("hf:some/x-GGUF:Q4_K_M", HF, "some/x-GGUF", "Q4_K_M", "x:Q4_K_M"),
        ("hf:some/x:sub/y.gguf", HF, "some/x", "sub/y.gguf", "y"),
        ("ollama:tiny", OCI, "library/tiny", "latest", "tiny"),
        ("ollama:some/tiny:1b", OCI, "some/tiny", "1b", "some/tiny:1b"),
    ],
)
def test_a_source_is_read(text: str, kind: SourceKind, place: str, which: str, name: str) -> None:
    source = parse_source(text)
    assert (source.kind, source.place, source.which, source.name) == (kind, place, which, name)


def test_a_registry_of_its_own_has_a_host() -> None:
    source = parse_source("oci://registry.example/team/tiny:v1")
    assert (source.host, source.place, source.which) == ("https://registry.example", "team/tiny", "v1")


def test_what_is_shown_has_no_signature() -> None:
    assert parse_source("https://h.example/x.gguf?token=secret").shown == "https://h.example/x.gguf"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "ftp://h/x.gguf",
        "https://user:password@h.example/x.gguf",
        "https://h.example/pytorch_model.bin",
        "https://h.example/model.safetensors",
        "file:x.gguf",
        "/models/x.pkl",
        "hf:x",
        "hf:../x",
        "hf:a/b:../../x.gguf",
        "ollama:../x",
        "ollama:x:a/b",
        "oci://h.example",
        "oci://user:p@h.example/x",
        "hf:a/b\nc",
        "x" * 5000,
    ],
)
def test_what_is_no_source_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_source(text)
    assert caught.value.field == "source"


def test_a_shard_stands_for_all() -> None:
    assert shards_of("x-00002-of-00003.gguf") == [f"x-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert shards_of("x.gguf") == ["x.gguf"]
    with pytest.raises(InvalidArgument):
        shards_of("x-00004-of-00003.gguf")


def test_the_usual_quantization_is_chosen_and_a_missing_shard_is_told() -> None:
    assert choose(["x-Q8_0.gguf", "x-Q4_K_M.gguf", "a.txt"], "") == ["x-Q4_K_M.gguf"]
    assert choose(["x-IQ4_XS.gguf", "x-Q4_0.gguf"], "q4_0") == ["x-Q4_0.gguf"]
    with pytest.raises(InvalidArgument, match=r"x-00002-of-00002\.gguf"):
        choose(["x-00001-of-00002.gguf"], "")
    with pytest.raises(InvalidArgument, match="pickle"):
        choose(["a.txt", "m.bin"], "")


@pytest.mark.parametrize(
    ("files", "model", "which", "chosen"),
    [
        (["m.gguf"], "m.gguf", "", None),
        (["m.gguf", "mmproj-m-F16.gguf"], "m.gguf", "", "mmproj-m-F16.gguf"),
        (
            ["m.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"],
            "m.gguf",
            "",
            "mmproj-F16.gguf",
        ),
        (["m.gguf", "mmproj-bf16.gguf", "mmproj-f32.gguf"], "m.gguf", "", "mmproj-bf16.gguf"),
        (["a/m.gguf", "a/mmproj.gguf", "b/mmproj.gguf"], "a/m.gguf", "", "a/mmproj.gguf"),
        (["q4/m.gguf", "mmproj.gguf"], "q4/m.gguf", "", "mmproj.gguf"),
        (["m.gguf", "mmproj.gguf"], "m.gguf", "none", None),
        (["m.gguf", "eyes.gguf", "mmproj.gguf"], "m.gguf", "eyes.gguf", "eyes.gguf"),
    ],
)
def test_the_projector_beside_a_model_is_chosen(
    files: list[str], model: str, which: str, chosen: str | None
) -> None:
    assert choose_projector(files, model, which) == chosen


@pytest.mark.parametrize(
    ("files", "which"),
    [
        (["m.gguf", "mmproj-a.gguf", "mmproj-b.gguf"], ""),
        (["m.gguf"], "mmproj.gguf"),
        (["m.gguf", "eyes.bin"], "eyes.bin"),
    ],
)
def test_a_projector_that_is_not_clear_or_not_there_is_refused(files: list[str], which: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        choose_projector(files, "m.gguf", which)
    assert caught.value.field == "mmproj"
