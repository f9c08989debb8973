"""Disks, memory, shared memory and open files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from inferflux.cli.doctor.finding import Finding, ok, problem, unknown, warning
from inferflux.cli.doctor.seen import Files, Folder, Memory, SharedMemory
from inferflux.cli.show.rows import bytes_words

_LEAST_FREE, _LITTLE_FREE = 64 << 20, 1 << 30
# Beside the streams: listeners, connections to servers, children, files.
_OTHER_FILES = 256
_MAIN_MEMORY = "main memory"


def disk(folders: Iterable[Folder]) -> Iterator[Finding]:
    """Findings about folders that services write to."""
    for one in folders:
        where = f"{one.use}: {one.path}"
        room = one.free_bytes + one.used_bytes
        if one.failure:
            remedy = f"give the service's user a folder that it may write to, with room ({one.use})"
            yield problem("disk", f"{where}: {one.failure}", remedy)
        elif one.free_bytes < _LEAST_FREE:
            said = f"{where}: {bytes_words(one.free_bytes)} are free"
            yield problem("disk", said, "free some space, or move the folder to another disk")
        elif room < one.wanted_bytes:
            allowed = bytes_words(one.wanted_bytes)
            said = f"{where}: its setting allows {allowed}, and {bytes_words(room)} are there"
            yield warning("disk", said, f"lower the setting, or move {one.use} to a larger disk")
        elif one.free_bytes < _LITTLE_FREE:
            said = f"{where}: {bytes_words(one.free_bytes)} are free"
            yield warning("disk", said, "free some space before it is full")
        else:
            yield ok("disk", f"{where}: {bytes_words(one.free_bytes)} free")


def memory(seen: Memory, *, has_gpu: bool) -> Iterator[Finding]:
    """Findings about the model, its KV cache and the host tier beside the limit of memory."""
    if seen.limit_bytes is None:
        yield unknown("memory", "the system does not tell how much there is")
        return
    limit = f"{bytes_words(seen.limit_bytes)} are the limit (machine, or control group)"
    if seen.model is None:
        yield unknown("memory", f"{limit}; no model is named (INFERFLUX_WORKER_MODEL_PATH)")
        return
    if seen.plan is None:
        remedy = "INFERFLUX_WORKER_MODEL_PATH: name a GGUF file that the worker can read"
        is_absent = "No module named" in seen.failure
        level = unknown if is_absent else problem
        yield level("memory", f"{seen.model}: {seen.failure}", "" if is_absent else remedy)
        return
    if has_gpu:
        said = f"{limit}; how much of {seen.model.name} is on GPUs"
        yield unknown("memory", said, f"`inferctl models plan {seen.model} --gpus BYTES,...` tells")
        return
    main = next(one for one in seen.plan["devices"] if one["name"] == _MAIN_MEMORY)
    kv = seen.kv_bytes or main["kv"]
    need = main["weights"] + kv + main["compute"]
    parts = (
        f"{seen.model.name} takes {bytes_words(need)} (weights {bytes_words(main['weights'])}, "
        f"KV cache {bytes_words(kv)})"
    )
    if need > seen.limit_bytes:
        remedy = "fewer INFERFLUX_WORKER_SLOTS or KV_CELLS, a quantized KV cache, or a smaller model"
        yield problem("memory", f"{parts}, and {limit}", remedy)
    elif need + seen.host_bytes > seen.limit_bytes:
        said = f"{parts}, the host tier {bytes_words(seen.host_bytes)}, and {limit}"
        least = bytes_words(max(seen.limit_bytes - need, 0) // 2)
        yield warning("memory", said, f"INFERFLUX_WORKER_HOST_BYTES: at most {least}, or raise the limit")
    else:
        yield ok("memory", f"{parts}; {limit}")


def shm(seen: SharedMemory, *, is_used: bool) -> Iterator[Finding]:
    """Findings about /dev/shm.

    Args:
        is_used: whether a worker of this installation keeps state there.
    """
    if seen.total_bytes is None:
        said = f"{seen.path} is missing: state of requests does not go from one worker to another through it"
        remedy = "mount a tmpfs there, or INFERFLUX_WORKER_SHM_BYTES=0"
        yield warning("shm", said, remedy) if is_used else unknown("shm", said, remedy)
        return
    if is_used and seen.wanted_bytes > seen.total_bytes:
        said = (
            f"{seen.path} has {bytes_words(seen.total_bytes)}, and INFERFLUX_WORKER_SHM_BYTES allows "
            f"{bytes_words(seen.wanted_bytes)}"
        )
        remedy = "enlarge it (`mount -o remount,size=...`, shm_size of a container), or lower the setting"
        yield warning("shm", said, remedy)
    else:
        yield ok(
            "shm", f"{seen.path}: {bytes_words(seen.free_bytes)} of {bytes_words(seen.total_bytes)} free"
        )
    if seen.left:
        said = f"dead workers left {bytes_words(seen.left_bytes)} in {', '.join(map(str, seen.left))}"
        remedy = "the next worker of the same user and NATS takes it over; if there will be none: rm -r these"
        yield warning("shm", said, remedy)


def files(seen: Files) -> Iterator[Finding]:
    """Findings about the limit of open files."""
    said = f"{seen.whose} may have {seen.soft:,} files open; a gateway takes {seen.streams:,} streams"
    if seen.soft < seen.streams + _OTHER_FILES:
        wanted = 1 << (seen.streams + _OTHER_FILES).bit_length()
        remedy = f"`ulimit -n {wanted}` before it starts, LimitNOFILE={wanted} in its unit, or fewer "
        level = problem if seen.soft < _OTHER_FILES else warning
        yield level("files", said, f"{remedy}INFERFLUX_GATEWAY_MAX_STREAMS")
    else:
        yield ok("files", said)
