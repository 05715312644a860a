"""Changes to valid examples: bytes cut, flipped, doubled; JSON with one part replaced by what nobody expects.

How many are tried is small with every change; `python -m pytest tests/fuzz --hypothesis-profile=long` tries ten times as many,
each time others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st


def fuzz(examples: int) -> Callable[[Any], Any]:
    """Return settings that try so many examples, always the same ones; with the long profile ten times as many."""
    is_long = settings.get_current_profile_name() == "long"
    return settings(
        max_examples=examples * (10 if is_long else 1),
        derandomize=not is_long,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


# Numbers at which something ends, in as many bytes as headers use.
_ENDS = [bytes([byte]) * size for byte in (0, 1, 0x7F, 0x80, 0xFF) for size in (1, 2, 4, 8)]
_ENDS += [(2**bits + by).to_bytes(8, "little") for bits in (16, 31, 32, 53, 62, 63) for by in (-1, 0)]


@st.composite
def changed_bytes(draw: Any, example: bytes, most: int = 4) -> bytes:
    """Return an example with one place changed, or several."""
    data = bytearray(example)
    for _ in range(draw(st.integers(1, most))):
        place = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 4)):
            case 0:
                del data[place:]
            case 1:
                data[place : place + 1] = bytes([draw(st.integers(0, 255))])
            case 2:
                end = draw(st.sampled_from(_ENDS))
                data[place : place + len(end)] = end
            case 3:
                data[place:place] = data[place : place + draw(st.integers(1, 64))]
            case _:
                del data[place : place + draw(st.integers(1, 64))]
    return bytes(data)


_NUMBERS = [0, -1, 1, 2**31, 2**63, -(2**63), 2**64, 10**30, 0.5, -0.0, 1e308, 1e-320]
_TEXTS = [
    "",
    " ",
    "\0",
    "a" * 3000,
    "\u202e",
    "\U0001f600",
    "NaN",
    "../../etc/passwd",
    "http://169.254.169.254/",
    "{{ 7 * 7 }}",
]
_NESTS = [[], {}, [[]], [None], [{}], {"": {}}, {"a": [1, "b", None]}, [0] * 500, {str(n): n for n in range(100)}]
ODD: list[Any] = [None, True, False, *_NUMBERS, *_TEXTS, *_NESTS]


def _deep(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


_VALUES = st.one_of(
    st.sampled_from(ODD),
    st.integers(2, 200).map(_deep),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
        max_leaves=6,
    ),
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        found += _places(inner, (*path, step))
    return found


@st.composite
def changed_json(draw: Any, example: Any, names: tuple[str, ...] = ()) -> Any:
    """Return an example with one to three of its parts replaced, taken out or doubled, or a field added.

    names: of fields that may be added.
    """
    value = copy.deepcopy(example)
    for _ in range(draw(st.integers(1, 3))):
        places = _places(value)
        if not places:
            return copy.deepcopy(draw(_VALUES))
        *way, last = draw(st.sampled_from(places))
        holder = value
        for step in way:
            holder = holder[step]
        match draw(st.integers(0, 5)):
            case 0:
                del holder[last]
            case 1 if isinstance(holder, list):
                holder.insert(last, copy.deepcopy(holder[last]))
            case 2 if isinstance(value, dict) and names:
                value[draw(st.sampled_from(names))] = copy.deepcopy(draw(_VALUES))
            case _:
                holder[last] = copy.deepcopy(draw(_VALUES))
    return value
