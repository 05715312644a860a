"""Logits processors: code of others that changes logits, of the whole engine or of one request.

An engine's processor is a class named by `logits_processors` ("package.module:Class") or by an entry point of the group
`octavo.logits_processors`. A request's are plain functions; they see one row at a time and cost what Python costs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from octavo.base.errors import PluginError
from octavo.base.logging import get_logger
from octavo.base.plugins import extend
from octavo.base.registry import Registry
from octavo.protocol.arrays import Int64Array
from octavo.protocol.step import Admission

_log = get_logger(__name__)


@runtime_checkable
class LogitsProcessor(Protocol):
    """Made once as `Class(vocab_size, num_slots, device)`. State belongs on the device, indexed by slot.

    graph_safe: `apply` may be captured in a graph: it reads the same tensors in every step and nothing on the host.
    """

    graph_safe: bool

    def admit(self, admission: Admission) -> bool:
        """Take note of a sequence in a slot, with its whole history and its parameters; returns whether it is concerned."""
        ...

    def release(self, slot: int) -> None:
        """Forget a slot; it may not have been concerned."""
        ...

    def apply(self, logits: Tensor, slots: Int64Array, index: Tensor, positions: Tensor) -> Tensor:
        """Return logits, float32 [S, V]; they may be changed in place. Rows that are not concerned stay as they are.

        slots: int64 [S], on the host; index: the same on the device. positions: int64 [S], of the tokens to be chosen.
        """
        ...


def load_processors(
    paths: Sequence[str], vocab_size: int, num_slots: int, device: torch.device
) -> list[LogitsProcessor]:
    """Make the engine's processors; raises PluginError for one that cannot be imported or is none."""
    registry = Registry("logits processor", {path: path for path in paths})
    extend(registry, "octavo.logits_processors")
    made: list[LogitsProcessor] = []
    for name in registry:
        processor = registry.load(name)(vocab_size, num_slots, device)
        if not isinstance(processor, LogitsProcessor):
            raise PluginError(f"logits processor {name!r} needs graph_safe, admit, release and apply")
        made.append(processor)
    return made


class RequestFunctions:
    """The functions that single requests bring, and traces to replay, as a processor.

    history: int32 [N, max_model_len] of all slots.
    """

    graph_safe = False

    def __init__(self, history: Tensor) -> None:
        self._history = history
        self._functions: dict[int, tuple[int, list[Callable[[list[int], list[int], Tensor], Tensor]]]] = {}

    def admit(self, admission: Admission) -> bool:
        """Take note of a request's functions."""
        params = admission.sampling
        functions = [_with_prompt(function) for function in params.logits_processors]
        if params.trace_decode_token_ids:
            functions.append(functools.partial(_replay, params.trace_decode_token_ids))
        if functions:
            self._functions[admission.slot] = admission.num_prompt, functions
        return bool(functions)

    def release(self, slot: int) -> None:
        """Forget a slot."""
        self._functions.pop(slot, None)

    def apply(self, logits: Tensor, slots: Int64Array, index: Tensor, positions: Tensor) -> Tensor:
        """Give every concerned row to its functions, one after the other."""
        for row, slot in enumerate(slots.tolist()) if self._functions else ():
            if slot in self._functions:
                num_prompt, functions = self._functions[slot]
                tokens = self._history[slot, : int(positions[row])].tolist()
                logits[row] = _run(functions, tokens[:num_prompt], tokens[num_prompt:], logits[row].clone())
        return logits


def _run(functions: Sequence[Callable[..., Any]], prompt: list[int], output: list[int], logits: Tensor) -> Any:
    changed: Any = logits
    try:
        for function in functions:
            changed = function(prompt, output, changed)
        return changed.to(logits).reshape(logits.shape)
    except Exception:  # noqa: BLE001 - whatever a user's function raises ends its own request and no other
        _log.exception("a request's logits processor failed; the request ends with an error")
        return torch.nan


def _replay(trace: tuple[int, ...], _prompt: list[int], output: list[int], logits: Tensor) -> Tensor:
    """Leave only the token that stands at this place of the trace; behind its end, all."""
    if len(output) < len(trace):
        kept = logits[trace[len(output)]].clone()
        logits.fill_(float("-inf"))[trace[len(output)]] = kept
    return logits


def _with_prompt(function: Callable[..., Any]) -> Callable[[list[int], list[int], Tensor], Tensor]:
    """Take functions of (output, logits) and of (prompt, output, logits), told apart by their number of arguments."""
    if len(inspect.signature(function).parameters) >= 3:
        return function
    return lambda _prompt, output, logits: function(output, logits)
