"""The control groups that bound this process (Linux), of version 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Group(NamedTuple):
    """The folder of a control group; the files in it are those of its version."""

    folder: Path
    is_v2: bool


def own_groups(controller: str, root: Path = Path("/")) -> Iterator[Group]:
    """This process's groups for a controller, and all above them: a limit on any of them counts.

    Folders may be missing: a container sees its own group as the root, while /proc may still name the path on
    the host. A controller of version 1 may be mounted together with others, as in `cpu,cpuacct`.
    """
    top = root / "sys/fs/cgroup"
    for line in read(root / "proc/self/cgroup").splitlines():
        # "0::/PATH" for version 2; "ID:CONTROLLERS:/PATH" for version 1.
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        is_v2 = controllers == ""
        if not is_v2 and controller not in controllers.split(","):
            continue
        mounts = {top, top / "unified"} if is_v2 else {top / controller, top / controllers}
        for mount in sorted(mounts):
            yield from (Group(folder, is_v2) for folder in _upwards(mount, path))


def read(path: Path) -> str:
    """Read a file; "" where there is none."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _upwards(mount: Path, path: str) -> list[Path]:
    """The folder of a group and those above it, down to the mount."""
    own = mount / path.strip("/")
    return [own, *(folder for folder in own.parents if folder.is_relative_to(mount))]
