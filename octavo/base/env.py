"""The only reader of the environment: one table of every variable Octavo knows."""

from __future__ import annotations

import os
from dataclasses import dataclass

_KNOWN = {
    "OCTAVO_LOG_LEVEL": "log level of all processes: DEBUG, INFO, WARNING or ERROR",
    "OCTAVO_LOG_FORMAT": "form of log lines of all processes: text, or json, one object a line",
    "OCTAVO_CACHE": "folder of what is computed once and kept, compiled kernels for example; unset is octavo in the user's cache",
    "OCTAVO_CPU_LEVEL": "widest instruction set of kernels: scalar, avx2, avx512, vnni, bf16, amx; unset: the best",
    "OCTAVO_PLUGINS": "comma-separated names of the plugins to load; unset loads all",
    "OCTAVO_API_KEY": "key that `octavo serve` asks for and that commands send to a server",
    "OCTAVO_ADMIN_API_KEY": "key that `octavo serve` asks for on the operator's routes",
    "OCTAVO_SERVE_ARGS": "flags of `octavo serve`, as on its command line, whose own go before them",
    "HF_HOME": "root of the Hugging Face cache",
    "HF_HUB_CACHE": "folder of the models in it; unset is its folder hub",
    "HF_ENDPOINT": "address of the hub, or of a mirror",
    "HF_HUB_OFFLINE": "1: never ask the hub",
    "HF_TOKEN": "token for the hub",
    "XDG_CACHE_HOME": "the user's cache folder",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    """The environment as read at start."""

    log_level: str
    log_format: str
    cache: str
    cpu_level: str | None
    plugins: tuple[str, ...] | None
    api_key: str | None
    admin_api_key: str | None
    serve_args: str
    hf_hub_cache: str
    hf_endpoint: str | None
    hf_hub_offline: bool
    hf_token: str | None


def read_env() -> Env:
    """Read every known variable once. Source of the names: `known_variables()`."""
    get = os.environ.get  # noqa: TID251
    plugins = get("OCTAVO_PLUGINS")
    cache_home = get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    hf_home = get("HF_HOME") or os.path.join(cache_home, "huggingface")
    return Env(
        log_level=get("OCTAVO_LOG_LEVEL", "INFO").upper(),
        log_format=get("OCTAVO_LOG_FORMAT") or "text",
        cache=get("OCTAVO_CACHE") or os.path.join(cache_home, "octavo"),
        cpu_level=get("OCTAVO_CPU_LEVEL") or None,
        plugins=None if plugins is None else tuple(p for p in plugins.split(",") if p),
        api_key=get("OCTAVO_API_KEY") or None,
        admin_api_key=get("OCTAVO_ADMIN_API_KEY") or None,
        serve_args=get("OCTAVO_SERVE_ARGS", ""),
        hf_hub_cache=get("HF_HUB_CACHE") or os.path.join(hf_home, "hub"),
        hf_endpoint=get("HF_ENDPOINT", "").rstrip("/") or None,
        hf_hub_offline=get("HF_HUB_OFFLINE", "0") in ("1", "true", "True", "YES", "yes"),
        hf_token=get("HF_TOKEN") or None,
    )


def prepare_kernel_caches() -> None:
    """Let compilers of kernels keep what they make in Octavo's cache folder; where the user named another, that one counts."""
    folder = read_env().cache
    for variable, name in (("TRITON_CACHE_DIR", "triton"), ("CUDA_CACHE_PATH", "cuda")):
        os.environ.setdefault(variable, os.path.join(folder, name))  # noqa: TID251
    os.environ.setdefault("TRITON_CACHE_MANAGER", "octavo.ops.kernel_files:KernelFiles")  # noqa: TID251


def prepare_nccl() -> None:
    """Leave NVLink multicast alone, unless the user has said something else: where hosts share their cards it can stop them."""
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # noqa: TID251


def known_variables() -> dict[str, str]:
    """Return name -> meaning of every variable that is read."""
    return dict(_KNOWN)


def set_variables() -> dict[str, str]:
    """Return the known variables that are set, with their values."""
    return {name: os.environ[name] for name in _KNOWN if name in os.environ}  # noqa: TID251


def default_log_level(level: str) -> bool:
    """Set the log level of this process's children, unless the user has set one; returns whether it was set.

    So that all processes of a command are equally quiet.
    """
    if "OCTAVO_LOG_LEVEL" in os.environ:  # noqa: TID251
        return False
    os.environ["OCTAVO_LOG_LEVEL"] = level  # noqa: TID251
    return True


def share_log_format(name: str) -> None:
    """Set the form of log lines of this process's children."""
    os.environ["OCTAVO_LOG_FORMAT"] = name  # noqa: TID251
