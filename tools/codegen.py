"""Generate `libs/api/inferflux/v1/` from `protos/`: message classes, gRPC stubs and their types.

python tools/codegen.py            # writes into libs/api
python tools/codegen.py --out DIR  # writes elsewhere, for the test that compares
"""

from __future__ import annotations

import argparse
import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"


def generate(out: Path) -> None:
    """Run protoc over every file in `protos/`, writing packages below `out`.

    Raises:
        RuntimeError: protoc refused a file; its message is on stderr.
    """
    out.mkdir(parents=True, exist_ok=True)
    sources = sorted(str(p.relative_to(PROTOS)) for p in PROTOS.rglob("*.proto"))
    arguments = [
        "protoc",
        f"-I{PROTOS}",
        f"-I{files('grpc_tools') / '_proto'}",
        f"--python_out={out}",
        f"--mypy_out=quiet:{out}",
        f"--grpc_python_out={out}",
        f"--mypy_grpc_out=quiet:{out}",
        *sources,
    ]
    if protoc.main(arguments) != 0:
        raise RuntimeError("protoc failed")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "libs" / "api")
    generate(parser.parse_args().out)
    sys.exit(0)
