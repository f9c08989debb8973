"""`inferctl admin audit`: reads the audit trail where its files are. Nothing is asked over the network."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from inferflux.cli.reach.command import AsJson, StateDirectory, state_path
from inferflux.cli.reach.errors import CommandError
from inferflux.common.calls.audit.chain import AuditKeys, BadLine, Head, read_head
from inferflux.common.calls.audit.entry import TextDigest
from inferflux.common.calls.audit.files import HEAD_FILE, KEY_FILE, LineReader, chains_of, files_of
from inferflux.common.calls.audit.verify import Verdict, verify

_KEY_VARIABLE = "INFERFLUX_AUDIT_KEY"
_POLL_S = 0.2
_COLUMNS = (
    "at",
    "service",
    "event",
    "client",
    "tenant",
    "key_id",
    "request_id",
    "method",
    "model",
    "decision",
    "outcome",
)

audit = typer.Typer(
    help="Read the audit trail, and check that nothing of it was changed.", no_args_is_help=True
)

Paths = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[PATH]...",
        help="Folders with audit trails, or files of one trail, in order. Else those of the local stack.",
    ),
]
KeyFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--key-file",
        help=f"File with the audit key, the current one first. Else ${_KEY_VARIABLE}, "
        f"else {KEY_FILE} beside the trail.",
    ),
]


@audit.command("verify")
def verify_command(
    paths: Paths = None,
    key_file: KeyFiles = None,
    head: Annotated[
        str,
        typer.Option(
            metavar="SEQ:HASH", help="A line of the one chain that PATH has; it was noted elsewhere."
        ),
    ] = "",
    as_json: AsJson = False,
    state_dir: StateDirectory = None,
) -> None:
    """Check every line. The first one that was changed, removed, added or moved is named; the status is 1."""
    noted = _parse_head(head) if head else None
    given = paths or [state_path(state_dir) / "audit"]
    chains = _chains(given)
    keys = _keys(key_file, given)
    if noted is not None and len(chains) > 1:
        raise CommandError(f"--head is of one chain, and there are {len(chains)}: name {' or '.join(chains)}")
    found = {name: _check(files, keys, noted) for name, files in chains.items()}
    if as_json:
        sys.stdout.write(json.dumps({name: _as_dict(each) for name, each in found.items()}, indent=2) + "\n")
    else:
        for name, each in found.items():
            sys.stdout.write(_in_words(name, each))
    bad = [name for name, each in found.items() if each.problem is not None]
    if bad:
        raise CommandError(f"not as it was written: {', '.join(bad)}")


@audit.command()
def tail(
    paths: Paths = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines.")] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with lines as they are written.")
    ] = False,
    as_json: AsJson = False,
    state_dir: StateDirectory = None,
) -> None:
    """Print the last lines. They are not checked: `verify` does that."""
    given = paths or [state_path(state_dir) / "audit"]
    _chains(given)
    reader = LineReader(given)
    last = deque(sorted(reader.new_lines(), key=lambda line: str(line.get("at"))), maxlen=lines)
    for line in last:
        _print(line, as_json=as_json)
    while follow:
        time.sleep(_POLL_S)
        for line in reader.new_lines():
            _print(line, as_json=as_json)


@audit.command("hash")
def hash_command(paths: Paths = None, key_file: KeyFiles = None, state_dir: StateDirectory = None) -> None:
    """Print the keyed hash of a text from stdin, to find it among `prompt_hmac` and `answer_hmac`."""
    keys = _keys(key_file, paths or [state_path(state_dir) / "audit"])
    for key in keys:
        digest = TextDigest(key.texts)
        digest.add(sys.stdin.read())
        sys.stdout.write(f"{digest.fields('text').get('text_hmac', '')}\n")
        break


def _chains(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """The files of each chain, by its name.

    Raises:
        CommandError: there are none.
    """
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise CommandError(f"there is no {missing[0]}")
    files = [path for path in paths if not path.is_dir()]
    chains = {chain: files_of(chain) for path in paths if path.is_dir() for chain in chains_of(path)}
    found = {str(chain): paths for chain, paths in chains.items()}
    if files:
        found[str(files[0])] = files
    if not found:
        raise CommandError(f"there is no audit trail in {paths[0]}")
    return found


def _keys(key_files: Sequence[Path] | None, paths: Sequence[Path]) -> list[AuditKeys]:
    """The keys to check with, the current one first.

    Raises:
        CommandError: there is none.
    """
    if key_files:
        return [AuditKeys.of(_read(path).strip()) for path in key_files]
    if key := os.environ.get(_KEY_VARIABLE):
        return [AuditKeys.of(key)]
    for path in paths:
        for folder in (path, *path.absolute().parents[:2]):
            if (folder / KEY_FILE).is_file():
                return [AuditKeys.of(_read(folder / KEY_FILE).strip())]
    raise CommandError(f"the audit key is needed: --key-file, or ${_KEY_VARIABLE}")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from None


def _parse_head(text: str) -> Head:
    seq, _, digest = text.partition(":")
    if not seq.isdigit() or len(digest) != 64:
        raise typer.BadParameter("--head is SEQ:HASH, as a service logs it when it starts and ends")
    return Head(int(seq), digest)


def _anchor(files: Sequence[Path], keys: Sequence[AuditKeys]) -> Head | None:
    """Head in the chain's `head` file; None where the checked files have none beside them.

    Raises:
        CommandError: it is not as it was written.
    """
    path = files[-1].parent / HEAD_FILE
    if not path.exists():
        return None
    # The head is read before the lines: what is written meanwhile is beyond it.
    for key in keys:
        try:
            return read_head(path.read_bytes(), key.chain)
        except BadLine as error:
            why = str(error)
    raise CommandError(f"{path}: {why}")


def _check(files: Sequence[Path], keys: Sequence[AuditKeys], noted: Head | None) -> Verdict:
    """Verify the chain against its `head` file, then against a head that was noted elsewhere."""
    found = _verify(files, keys, _anchor(files, keys))
    if noted is None or found.problem is not None:
        return found
    beside = _verify(files, keys, noted)
    is_anchored = found.is_anchored or noted.seq >= found.head.seq
    return beside if beside.problem is not None else replace(found, is_anchored=is_anchored)


def _verify(files: Sequence[Path], keys: Sequence[AuditKeys], anchor: Head | None) -> Verdict:
    return verify(((str(path), _lines(path)) for path in files), [key.chain for key in keys], anchor)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from None


def _in_words(name: str, found: Verdict) -> str:
    """A chain's paragraph."""
    lines = [*(f"  {warning}" for warning in found.warnings)]
    if found.problem is not None:
        lines.append(f"  FIRST BAD LINE {found.problem.file}:{found.problem.line}: {found.problem.why}")
    else:
        if found.n_torn:
            lines.append(f"  {found.n_torn} incomplete lines of killed processes, accounted for")
        if found.is_torn:
            lines.append("  the last line is incomplete: it is being written, or its process was killed")
        if found.first > 1:
            lines.append(f"  begins with line {found.first}: lines before it were not given")
        if not found.is_anchored:
            lines.append("  the end is not anchored: lines that are missing there do not show")
    what = "BAD" if found.problem is not None else "good"
    head = f"{found.head.seq}:{found.head.hash}"
    return "\n".join([f"{name}: {what}, {found.n_lines} lines, the last good one {head}", *lines]) + "\n"


def _as_dict(found: Verdict) -> dict[str, Any]:
    problem = found.problem
    return {
        "is_good": problem is None,
        "first_bad": None
        if problem is None
        else {"file": problem.file, "line": problem.line, "why": problem.why},
        "lines": found.n_lines,
        "first_seq": found.first,
        "seq": found.head.seq,
        "hash": found.head.hash,
        "is_anchored": found.is_anchored,
        "is_torn": found.is_torn,
        "torn_lines": found.n_torn,
        "warnings": list(found.warnings),
    }


def _print(line: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(line) + "\n")
    else:
        named = [_visible(str(line[name])) for name in _COLUMNS if line.get(name)]
        tokens = [f"{line[name]} {name}" for name in ("prompt_tokens", "completion_tokens") if line.get(name)]
        sys.stdout.write("  ".join(named + tokens) + "\n")
    sys.stdout.flush()


def _visible(text: str) -> str:
    """A text without what a terminal would obey: a tenant names a model as it likes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
