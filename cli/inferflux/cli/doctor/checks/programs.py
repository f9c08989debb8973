"""Versions of packages, llama.cpp's build, and proxies that the environment names."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Mapping

from inferflux.cli.doctor.finding import Finding, ok, problem, unknown, warning
from inferflux.cli.doctor.seen import Llama
from inferflux.common.http.http_proxies import BadProxy, Proxies

_PYTHON = (3, 11)
# What makes llama.cpp fast, by the kernel's name of the CPU's flag.
_VECTORS = {"avx2": "AVX2", "avx512f": "AVX512"}
_BUILD = (
    'CMAKE_ARGS="{flag} -DGGML_RPC=on" pip install --force-reinstall --no-cache-dir '
    "--no-binary llama-cpp-python llama-cpp-python=={version}"
)
_FLAGS = {
    "CUDA": "-DGGML_CUDA=on",
    "ROCm": "-DGGML_HIP=on",
    "CPU": "-DGGML_NATIVE=on",
}
_NO_GPU = ("CPU", "RPC", "BLAS")
_PROXIES = ("http", "https", "all")
_GRPC_PROXY = "grpc_proxy"


def versions(installed: Mapping[str, str], python: tuple[int, ...]) -> Iterator[Finding]:
    """Findings about Python and InferFlux's own packages."""
    said = ".".join(map(str, python))
    if python[:2] < _PYTHON:
        yield problem("versions", f"Python {said}", "InferFlux needs Python 3.11 or newer")
    found = set(installed.values())
    if len(found) > 1:
        each = ", ".join(f"{name} {version}" for name, version in sorted(installed.items()))
        remedy = "install all of one version into this environment: `pip install --upgrade` of each"
        yield problem("versions", f"packages of several versions: {each}", remedy)
    else:
        yield ok("versions", f"{len(installed)} packages of InferFlux {''.join(found)}, Python {said}")


def llama(seen: Llama) -> Iterator[Finding]:
    """Findings about llama.cpp's build beside this machine's CPU and GPUs."""
    version = seen.version or "VERSION"
    if seen.failure:
        yield from _unloadable(seen)
        return
    has = [name for name in _VECTORS.values() if seen.features.get(name) == "1"]
    gpus = [
        f"{name} ({count} GPUs)" for name, count in seen.backends.items() if name not in _NO_GPU for _ in "1"
    ]
    parts = [*has, *gpus, *(["RPC"] if "RPC" in seen.backends else []), "flash attention on the CPU"]
    yield ok("llama.cpp", f"llama-cpp-python {seen.version}: {', '.join(parts)}")
    slow = [flag for flag in _VECTORS if flag in seen.cpu_flags and _VECTORS[flag] not in has]
    if "avx2" in slow:
        said = "llama.cpp was built without AVX2, which this CPU has: it is several times slower"
        yield warning("llama.cpp", said, _BUILD.format(flag=_FLAGS["CPU"], version=version))
    yield from gpu(seen)


def gpu(seen: Llama) -> Iterator[Finding]:
    """Findings about GPUs that llama.cpp does not use."""
    for name, file in seen.drivers.items():
        if name not in seen.backends:
            said = f"there is a driver of GPUs ({file}), and llama.cpp was built without {name}"
            yield warning("gpu", said, _BUILD.format(flag=_FLAGS[name], version=seen.version))
        elif not seen.backends[name]:
            said = f"llama.cpp was built with {name}, there is a driver ({file}), and it finds no GPU"
            yield warning(
                "gpu", said, "`nvidia-smi` or `rocminfo` should list one: check rights and versions"
            )
    for name, count in seen.backends.items():
        if name not in (*_NO_GPU, *seen.drivers) and not count:
            said = f"llama.cpp was built with {name}, and there is no GPU of it: models run on the CPU"
            yield warning("gpu", said, "install the driver, or give the container its GPUs")
    if not seen.drivers and not any(count for name, count in seen.backends.items() if name not in _NO_GPU):
        yield ok("gpu", "no driver of a GPU: models run on the CPU")


def _unloadable(seen: Llama) -> Iterator[Finding]:
    if seen.signal == signal.SIGILL:
        said = "llama.cpp was built for another CPU: loading it is an illegal instruction"
        yield problem("llama.cpp", said, _BUILD.format(flag=_FLAGS["CPU"], version="VERSION"))
    elif "not installed" in seen.failure or "No module named" in seen.failure:
        said = "llama-cpp-python is not installed: gateways and workers need it"
        yield unknown("llama.cpp", said, "`pip install llama-cpp-python`, where they are to run")
    else:
        said = f"llama.cpp cannot be loaded: {seen.failure}"
        yield problem("llama.cpp", said, "install llama-cpp-python anew, built on this machine")


def proxies(env: Mapping[str, str], hosts: Iterable[str]) -> Iterator[Finding]:
    """Findings about proxies that stand between clients on this machine and the services.

    Args:
        hosts: by which the services are called.
    """
    named = {
        name: env.get(f"{name}_proxy") or env.get(f"{name}_proxy".upper(), "") for name in (*_PROXIES, "no")
    }
    given = [name for name in _PROXIES if named[name]]
    grpc = env.get(_GRPC_PROXY, "")
    if not given and not grpc:
        yield ok("proxies", "the environment names none")
        return
    set_of = Proxies({name: value for name, value in named.items() if value})
    try:
        through = [host for host in dict.fromkeys(hosts) if set_of.proxy_to("http", host, None) is not None]
    except BadProxy as error:
        yield problem("proxies", str(error), "write http_proxy and https_proxy as http://host:port")
        return
    add = f"NO_PROXY={','.join([*filter(None, [named['no']]), *through])}"
    if through and given:
        said = f"{given[0]}_proxy is set, and NO_PROXY lacks {', '.join(through)}: HTTP clients ask the proxy"
        yield warning("proxies", said, add)
    if grpc:
        said = "grpc_proxy is set: gRPC clients that are not InferFlux's call gateways through it"
        yield warning("proxies", said, f"unset grpc_proxy, or no_grpc_proxy={','.join(dict.fromkeys(hosts))}")
    if not through and not grpc:
        yield ok("proxies", "the services' own hosts are in NO_PROXY")
