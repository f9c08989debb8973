"""The file that `INFERFLUX_CONFIG` names: YAML that several services read, each its own part."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from inferflux.common.errors import InvalidArgument

VARIABLE = "INFERFLUX_CONFIG"
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
    """What a file says, as `kind` has it.

    Raises:
        InvalidArgument: the file cannot be read, or says what cannot be; names the entry.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InvalidArgument(f"{path} has more than {_MOST_BYTES} bytes", field=VARIABLE)
        # Safe: it makes no objects but those of YAML itself.
        return kind.model_validate(yaml.load(path.read_bytes(), _Loader) or {})  # noqa: S506
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}", field=VARIABLE) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        said = f"{where}: {first['msg']}" if where else "it should be a valid dictionary"
        raise InvalidArgument(f"{path}: {said}", field=VARIABLE) from None
    # A ValueError is of a date or a number that YAML knows and Python does not.
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        why = " ".join(str(error).split())[:_LONGEST_WHY]
        raise InvalidArgument(f"{path} is no YAML: {why}", field=VARIABLE) from None
