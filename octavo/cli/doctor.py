"""`octavo doctor`: what this machine is, what Octavo chooses on it and why; a block to paste into a bug report."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.base.env import known_variables, read_env, set_variables
from octavo.base.errors import OctavoError
from octavo.base.facts import DeviceFacts
from octavo.base.kernel_cache import kernel_cache_state
from octavo.base.version import VERSION
from octavo.config.engine import EngineConfig
from octavo.config.flags import FlagParser, add_engine_flags, add_model, engine_config, given_options

# Optional packages that change what is chosen, or what a bug report is about.
_OPTIONAL = ("triton", "flash-attn-4", "flashinfer-python", "llguidance", "transformers")
_PLUGIN_GROUPS = ("octavo.devices", "octavo.kernels", "octavo.models")
_SECRETS = re.compile(r"KEY|TOKEN")

Section = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Print what was found; return the exit status, 1 if something that Octavo needs is missing or broken."""
    parser = FlagParser(
        prog="octavo doctor",
        description="Show the facts of this machine, the kernels that are chosen and why. With MODEL, its facts too.",
    )
    add_model(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_engine_flags(parser)
    parsed = parser.parse_args(arguments)
    config = engine_config(parsed)
    sections: dict[str, Callable[[], Section]] = {
        "octavo": _octavo,
        "packages": _packages,
        "machine": _machine,
        "device": lambda: _device(config.device.device)[1],
        "kernels": lambda: _kernels(config),
        "attention": lambda: _attention(config),
        "caches": _caches,
        "environment": _environment,
        "plugins": _plugins,
    }
    if "model" in given_options(parsed):
        sections["model"] = lambda: _model(config)
    report, problems = examine(sections)
    print(json.dumps({**report, "problems": problems}, indent=2) if parsed.json else render(report, problems))
    return 1 if problems else 0


def examine(sections: Mapping[str, Callable[[], Section]]) -> tuple[dict[str, Section], list[str]]:
    """Return what each section found, and what is wrong; a section that fails does not keep the others from being shown."""
    report: dict[str, Section] = {}
    problems: list[str] = []
    for name, look in sections.items():
        try:
            report[name] = look()
        except (ImportError, OSError, RuntimeError, OctavoError) as error:
            report[name] = {}
            problems.append(f"{name}: {type(error).__name__}: {error}")
    missing = [name for name, version in report.get("packages", {}).items() if version == "missing"]
    return report, problems + [f"packages: {name} is not installed" for name in missing]


def render(report: Mapping[str, Section], problems: Sequence[str]) -> str:
    """Return the report as a block of Markdown."""
    lines = ["```text"]
    for name, section in report.items():
        lines.append(f"[{name}]")
        width = max(map(len, section), default=0)
        lines += [f"  {key:<{width}}  {_text(value)}" for key, value in section.items()]
    lines += ["[problems]", *(f"  {problem}" for problem in problems or ("none",)), "```"]
    return "\n".join(lines)


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _octavo() -> Section:
    return {
        "version": VERSION,
        "folder": str(Path(__file__).parents[1]),
        "python": f"{platform.python_version()} ({sys.executable})",
    }


def _packages() -> Section:
    """Return the version of each package that Octavo needs, and of optional ones that are there."""
    try:
        required = importlib.metadata.requires("octavo") or []
    except importlib.metadata.PackageNotFoundError:
        required = []
    needed = [re.split(r"[^\w.-]", line)[0] for line in required if "extra ==" not in line]
    versions = {name: _version(name) or "missing" for name in needed}
    return versions | {name: version for name in _OPTIONAL if (version := _version(name)) is not None}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _machine() -> Section:
    limits = {"cores of the machine": os.cpu_count(), "load": f"{os.getloadavg()[0]:.1f}"}
    return {"system": platform.platform(), "libc": " ".join(platform.libc_ver()), **limits}


def _device(kind: str) -> tuple[DeviceFacts, Section]:
    import torch

    from octavo import launch
    from octavo.base.native import library

    facts, free_memory, others = launch.survey_devices(kind)
    return facts, {
        "chosen": f"{facts.kind}: {facts.name}",
        "architecture": facts.arch,
        "cores": facts.num_cores,
        "memory": f"{facts.total_memory / 2**30:.1f} GiB, {free_memory / 2**30:.1f} free",
        "dtypes": facts.dtypes,
        "features": sorted(facts.features),
        "others": others,
        "kernels in C++": found if isinstance(found := library(), str) else f"for {found.level}",
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}, {torch.get_num_threads()} threads",
    }


def _computing(config: EngineConfig) -> tuple[DeviceFacts, str]:
    """Return the device's facts, and the type that was asked for or else its first."""
    facts = _device(config.device.device)[0]
    return facts, facts.dtypes[0] if config.model.dtype == "auto" else config.model.dtype


def _kernels(config: EngineConfig) -> Section:
    from octavo.ops.registry import bind

    facts, dtype = _computing(config)
    return {"dtype": dtype} | dict(reason.split(" ", 1) for reason in bind(facts, dtype).decisions)


def _attention(config: EngineConfig) -> Section:
    """Return for each backend whether it takes plain heads of 128, the commonest; other layers have the log's reasons."""
    from octavo.nn.attention.select import BACKENDS, AttentionNeeds, select

    facts, dtype = _computing(config)
    needs = AttentionNeeds(dtype=dtype, head_dim=128)
    refusals = {backend.name: backend.refusal(needs, facts) or "fits" for backend in BACKENDS}
    return {**refusals, "chosen": select(needs, facts).reason}


def _model(config: EngineConfig) -> Section:
    from octavo.checkpoint.open import open_checkpoint
    from octavo.config.resolve import resolve

    checkpoint = open_checkpoint(config.model)
    facts = checkpoint.facts
    size = sum(Path(file).stat().st_size for file in checkpoint.files)
    return {
        "architecture": facts.architecture,
        "weights": f"{checkpoint.kind}, {len(checkpoint.files)} file(s), {size / 2**20:,.0f} MiB, {facts.dtype}",
        "layers": f"{facts.num_layers} of {facts.hidden_size}, {facts.num_heads} heads, {facts.num_kv_heads} of keys",
        "vocabulary": facts.vocab_size,
        "positions": facts.max_position,
        "tokenizer": "yes" if checkpoint.tokenizer else "none",
        "chat template": "yes" if checkpoint.chat_template else "none",
        "sampling defaults": dict(checkpoint.sampling) or "none",
        "decisions": "; ".join(resolve(config, facts, _computing(config)[0]).decisions),
    }


def _caches() -> Section:
    folder, own = Path(read_env().hf_hub_cache), Path(read_env().cache)
    size = sum(file.stat().st_size for file in own.rglob("*") if file.is_file())
    models = sorted(path.name.removeprefix("models--").replace("--", "/") for path in folder.glob("models--*"))
    place = next(path for path in (folder, *folder.parents) if path.exists())
    return {
        "hub": str(folder),
        "free on its disk": f"{shutil.disk_usage(place).free / 2**30:.1f} GiB",
        "writable": os.access(place, os.W_OK),
        "models": models,
        "octavo": f"{own}, {size / 2**20:.1f} MiB",
        "kernels": kernel_cache_state(),
    }


def _environment() -> Section:
    """Return the variables that are set, without what is secret."""
    given = set_variables()
    return {name: "(hidden)" if _SECRETS.search(name) else given[name] for name in known_variables() if name in given}


def _plugins() -> Section:
    points = {group: importlib.metadata.entry_points(group=group) for group in _PLUGIN_GROUPS}
    return {group: [f"{point.name} = {point.value}" for point in found] for group, found in points.items()}
