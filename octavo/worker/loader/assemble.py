"""The assembly line: six passes over a model's tree, on the meta device until weights are read.

create -> assign a format to every weight -> place on the mesh -> bind kernels and attention -> read weights -> finalize.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import nn

from octavo.base.errors import CheckpointError, ConfigError
from octavo.checkpoint.config_keys import settle_extras
from octavo.checkpoint.record import Checkpoint
from octavo.device.base import Device
from octavo.device.cpu import large_pages
from octavo.models.registry import load_model
from octavo.nn.assembly import Assigned, Binding, Bound, Elsewhere, Filled, Finalized, Keeper, Placed, Stored
from octavo.nn.attention.layer import Attention
from octavo.nn.decoder import CausalLM
from octavo.nn.formats.base import WeightFormat
from octavo.nn.parallel.mesh import Mesh
from octavo.ops.registry import Kernels, bind
from octavo.protocol.kept import KeptLayer
from octavo.worker.loader.dummy import dummy_weights
from octavo.worker.loader.formats import FormatChoice
from octavo.worker.loader.gguf_weights import gguf_kinds, gguf_weights
from octavo.worker.loader.pt_weights import pt_weights
from octavo.worker.loader.weights import NUMBER, Incoming, Target, fill, safetensors_weights
from octavo.worker.spec import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembledModel:
    """A model ready to run. layers: what each layer keeps between steps. decisions: every choice, and why, one line each.

    generates: whether it has a head; if not, it gives hidden states only. unrecordable: the kernels it calls that no graph can
    record.
    """

    model: CausalLM
    layers: tuple[KeptLayer, ...]
    kernels: Kernels
    decisions: tuple[str, ...]
    generates: bool = True
    unrecordable: tuple[str, ...] = ()


def assemble(
    checkpoint: Checkpoint,
    *,
    dtype: str,
    device: Device,
    max_model_len: int,
    weights: Weights | None = None,
    overrides: Mapping[str, str] | None = None,
    mesh: Mesh | None = None,
) -> AssembledModel:
    """Build the model of a checkpoint on a device, as far as it is this rank's.

    dtype: of weights and activations. max_model_len: positions that are served. weights: as they are in the checkpoint if not
    given. overrides: kernel by op ("rms_norm": "torch"), and the attention backend ("attention": "torch"). mesh: one rank if not
    given. Raises CheckpointError for weights that do not fit the config, ConfigError for choices that do not fit the device or
    the mesh.
    """
    torch_dtype, mesh, forced = getattr(torch, dtype), mesh or Mesh(), dict(overrides or {})
    weights = weights or Weights()
    with torch.device("meta"):
        model_class = load_model(checkpoint.facts.architecture)
        model = model_class(settle_extras(checkpoint.facts, model_class.config_keys))
    attention = forced.pop("attention", None)
    kernels = bind(device.facts, dtype, forced)
    names, kind = model.checkpoint_names, _kind(checkpoint, weights.load_format)
    stored = gguf_kinds(checkpoint.files[0]) if kind == "gguf" else {}
    formats = FormatChoice(stored=stored, names=names, dtype=torch_dtype, kernels=kernels, mesh=mesh, weights=weights)
    assign_formats(model, formats.choose)
    place(model, mesh, torch_dtype)
    binding = Binding(
        facts=device.facts,
        dtype=dtype,
        device=device.torch_device,
        kernels=kernels,
        mesh=mesh,
        max_model_len=max_model_len,
        attention=attention,
    )
    bind_layers(model, binding)
    materialize(model, device.torch_device)
    targets, unused = destinations(model, names)
    fill(targets, _source(checkpoint, kind, targets, weights.seed), unused, elsewhere(model, names))
    finalize(model)
    return AssembledModel(
        model=model,
        layers=kept_layers(model),
        kernels=binding.kernels,
        decisions=(*binding.kernels.decisions, *formats.decisions(), *binding.decisions),
        generates=isinstance(model, CausalLM),
        unrecordable=called(model, binding.kernels.unrecordable),
    )


def assign_formats(model: nn.Module, choose: Callable[[str, int], WeightFormat]) -> None:
    """Pass 2: give every weight the format that `choose` names for its path."""
    for path, module in list(model.named_modules()):
        if isinstance(module, Assigned):
            module.assign(path, choose)


def place(model: nn.Module, mesh: Mesh, dtype: torch.dtype) -> None:
    """Pass 3: settle local shapes; parameters now exist on the meta device."""
    for module in model.modules():
        if isinstance(module, Placed):
            module.place(mesh, dtype)


def bind_layers(model: nn.Module, binding: Binding) -> None:
    """Pass 4: give layers the kernels, backends and collectives that they call."""
    for module in model.modules():
        if isinstance(module, Bound):
            module.bind(binding)


def materialize(model: nn.Module, device: torch.device) -> None:
    """Pass 5, first half: give every parameter memory on the device; on a host they lie one behind another."""
    parameters = list(model.named_parameters())
    sizes = [-(-meta.nbytes // 64) * 64 for _, meta in parameters]
    region = large_pages(sum(sizes)) if device.type == "cpu" and any(sizes) else None
    for (path, meta), end, size in zip(parameters, accumulate(sizes), sizes, strict=True):
        parent, _, name = path.rpartition(".")
        if region is None or size == 0:
            # Not empty_like: of a meta tensor it imports seconds of symbolic algebra.
            memory = torch.empty(meta.shape, dtype=meta.dtype, device=device)
        else:
            flat = torch.frombuffer(region, dtype=meta.dtype, count=meta.numel(), offset=end - size)
            memory = flat.view(meta.shape)
        parameter = nn.Parameter(memory, requires_grad=False)
        model.get_submodule(parent).register_parameter(name, parameter)


def finalize(model: nn.Module) -> None:
    """Pass 6: let formats repack."""
    for module in model.modules():
        if isinstance(module, Finalized):
            module.finalize()


def called(model: nn.Module, functions: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of the functions that layers hold, or the backends of layers."""
    held = list[object]()
    for module in model.modules():
        held += vars(module).values()
        held += vars(module.backend).values() if isinstance(module, Attention) else ()
    return tuple(name for name, function in functions.items() if any(function is one for one in held))


def kept_layers(model: nn.Module) -> tuple[KeptLayer, ...]:
    """Return what every layer here keeps, in order; raises ConfigError where one reads what another stage keeps."""
    kept = {layer.layer: layer for module in model.modules() if isinstance(module, Keeper) for layer in [module.kept()]}
    for layer in kept.values():
        if layer.shares is not None and layer.shares not in kept:
            raise ConfigError(
                f"layer {layer.layer} reads what layer {layer.shares} keeps, so one stage must have both: "
                "pipeline_parallel_size must be smaller",
                field="pipeline_parallel_size",
            )
    return tuple(kept[number] for number in sorted(kept))


def destinations(model: nn.Module, names: Mapping[str, str | Stored]) -> tuple[dict[str, Target], frozenset[str]]:
    """Return targets by name in the checkpoint, and the names of what the model's table has and nobody needs.

    A head that is tied to the embedding holds nothing, for example, and files may have its weight all the same.
    """
    table = {path: name if isinstance(name, Stored) else Stored(name=name) for path, name in names.items()}
    targets: dict[str, Target] = {}
    unused = set(table)
    for path, module in model.named_modules():
        for leaf, part in module.destinations().items() if isinstance(module, Filled) else ():
            whole, _, suffix = f"{path}.{leaf}".rpartition(".")
            pattern = NUMBER.sub("{}", whole)
            assert pattern in table, f"the model file names no checkpoint tensor for {pattern}"
            unused.discard(pattern)
            name = f"{table[pattern].name.format(*NUMBER.findall(whole))}.{suffix}".removeprefix(".")
            shared = targets[name].parts if name in targets else ()
            targets[name] = Target(stored=table[pattern], parts=(*shared, part))
    modules = {NUMBER.sub("{}", path) for path, _ in model.named_modules()}
    return targets, frozenset(table[path].name for path in unused if path in modules or table[path].ignored)


def elsewhere(model: nn.Module, names: Mapping[str, str | Stored]) -> tuple[str, ...]:
    """Return how names begin in the checkpoint of what other stages hold."""
    found = set[str]()
    for path in (path for path, module in model.named_modules() if isinstance(module, Elsewhere)):
        parent, _, number = path.rpartition(".")
        inside = (name for pattern, name in names.items() if pattern.startswith(f"{parent}.{{}}."))
        whole = (name.name if isinstance(name, Stored) else name for name in inside)
        found.update(name.partition("{}")[0] + f"{number}." for name in whole)
    return tuple(found)


def _kind(checkpoint: Checkpoint, load_format: str) -> str:
    if load_format not in ("auto", "dummy", checkpoint.kind):
        raise ConfigError(
            f"load_format is {load_format}, but {checkpoint.path} holds {checkpoint.kind}", field="load_format"
        )
    return checkpoint.kind if load_format == "auto" else load_format


def _source(checkpoint: Checkpoint, kind: str, targets: Mapping[str, Target], seed: int) -> Iterator[Incoming]:
    if kind == "dummy":
        return dummy_weights(targets, seed)
    if kind == "gguf":
        return gguf_weights(checkpoint.files[0], checkpoint.facts, targets)
    if kind == "safetensors":
        return safetensors_weights(checkpoint.files)
    if kind == "pt":
        return pt_weights(checkpoint.files)
    raise CheckpointError(f"{checkpoint.path}: holds no weights; load_format dummy makes random ones")
