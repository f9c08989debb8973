"""The file that `INFERFLUX_CONFIG` names: YAML that several services read, each its own part."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from inferflux.common.contract.errors import InvalidArgument

from .validation_words import in_plain_words

VARIABLE = "INFERFLUX_CONFIG"
_PARTS = ("models", "aliases")
# A part of the writer's own, such as one with anchors.
_OWN_PART = "x-"
_MAPPING, _LIST = "a mapping (name: value)", "a list (- one entry a line)"
_MOST_BYTES = 1 << 20
_MOST_MERGED = 10_000
_LONGEST_WHY = 500
_T = TypeVar("_T", bound=BaseModel)


class _Loader(yaml.SafeLoader):
    """Ends a file whose merges (`<<`) of merges would fill memory: each level multiplies the one below."""

    _merged = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        self._merged += len(node.value)
        if self._merged > _MOST_MERGED:
            raise yaml.constructor.ConstructorError(None, None, "it has too many keys", node.start_mark)


def read_config(path: Path, kind: type[_T]) -> _T:
    """Read a file of settings as a `kind`.

    Raises:
        InvalidArgument: the file cannot be read, or says what cannot be; names the entry.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InvalidArgument(f"{path} has more than {_MOST_BYTES} bytes", field=VARIABLE)
        # Safe: it makes no objects but those of YAML itself.
        said = yaml.load(path.read_bytes(), _Loader)  # noqa: S506
        _check_parts(path, said)
        return kind.model_validate(said or {})
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}", field=VARIABLE) from None
    except ValidationError as error:
        raise InvalidArgument(f"{path}: {_first_of(error, kind)}", field=VARIABLE) from None
    # A ValueError is of a date or a number that YAML knows and Python does not.
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        why = _shortened(" ".join(_why_no_yaml(error).split()))
        raise InvalidArgument(f"{path} is no YAML: {why}", field=VARIABLE) from None


def _check_parts(path: Path, said: object) -> None:
    """Raises InvalidArgument where a part is of no service: a slip in its name would leave out all of it."""
    if said is not None and not isinstance(said, dict):
        raise InvalidArgument(f"{path}: it must be {_MAPPING} with {' and '.join(_PARTS)}", field=VARIABLE)
    for name in map(str, said or ()):
        if name not in _PARTS and not name.startswith(_OWN_PART):
            known = _meant(name, _PARTS) or f": there are {' and '.join(_PARTS)}, and what begins with x-"
            raise InvalidArgument(f"{path}: {_shortened(name)!r} is not known{known}", field=VARIABLE)


def _first_of(error: ValidationError, kind: type[BaseModel]) -> str:
    """The first thing that is wrong, with its place and the value that is there."""
    problem = error.errors(include_url=False)[0]
    words = in_plain_words(problem["type"], problem["msg"], mapping=_MAPPING, sequence=_LIST)
    if problem["type"] == "extra_forbidden":
        words += _meant(str(problem["loc"][-1]), _fields_at(kind, problem["loc"][:-1]))
    elif problem["type"] != "value_error" and isinstance(problem["input"], str | int | float):
        words += f" (given: {_shortened(repr(problem['input']))})"
    return f"{_place(problem['loc'])}{':' if problem['type'] == 'value_error' else ''} {words}"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_WHY else f"{text[:_LONGEST_WHY]}..."


def _place(location: Sequence[int | str]) -> str:
    """`models[0].path`."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return path.removeprefix(".")


def _meant(name: str, known: Iterable[str]) -> str:
    """Hint of the known name that may have been meant; empty if none is near."""
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean {nearest[0]}?" if nearest else ""


def _fields_at(kind: type[BaseModel], location: Sequence[int | str]) -> Iterable[str]:
    """The fields that a place of a file can have; none where they are not those of a model."""
    for part in location:
        if isinstance(part, str):
            inner = _model_in(kind.model_fields[part].annotation) if part in kind.model_fields else None
            if inner is None:
                return ()
            kind = inner
    return kind.model_fields


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in `list[Model]` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model_in(each))), None)


def _why_no_yaml(error: Exception) -> str:
    """Error of a parser in words, with its place in the file where it tells one."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return str(error)
    mark = error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem or error.context}"
