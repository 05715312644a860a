"""How the solver cuts pages: what fits where, and what it wastes on shapes of models that people run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo.engine.kvcache.geometry import solve
from octavo.protocol.kept import Kept, KeptLayer, KeptState, KeptTokens, Plane

BLOCKS = (16, 32, 64, 128)


def attention(heads: int, dim: int, window: int | None = None) -> KeptTokens:
    planes = tuple(Plane(name=name, heads=heads, dim=dim, dtype="bfloat16", itemsize=2) for name in ("key", "value"))
    return KeptTokens(planes=planes, window=window)


def layers(*kept: Kept) -> list[KeptLayer]:
    return [KeptLayer(layer=layer, kept=each, blocks=BLOCKS) for layer, each in enumerate(kept)]


def test_a_layer_that_reads_anothers_pages_takes_none() -> None:
    full, sliding = attention(2, 8), attention(2, 8, window=32)
    own = layers(full, sliding, full)
    readers = [
        KeptLayer(layer=3, kept=sliding, blocks=BLOCKS, shares=1),
        KeptLayer(layer=4, kept=full, blocks=(32,), shares=2),
    ]
    alone, shared = solve(own), solve([*own, *readers])
    assert shared.shared == ((3, 1), (4, 2))
    assert [group.layers for group in shared.groups] == [(0, 2), (1,)]
    # A block must be one that the reader's backend takes too.
    assert shared.groups[0].block == 32
    assert alone.shared == ()
    with pytest.raises(AssertionError, match="what another keeps"):
        solve([*own, KeptLayer(layer=3, kept=full, blocks=BLOCKS, shares=1)])


def recurrent(key_heads: int, value_heads: int, dim: int, width: int = 4) -> KeptState:
    """A gated delta rule: the state in float32, and the last inputs of a convolution in bfloat16."""
    channels = (2 * key_heads + value_heads) * dim
    return KeptState(
        planes=(
            Plane(name="state", heads=value_heads, dim=dim * dim, dtype="float32", itemsize=4),
            Plane(
                name="inputs", heads=key_heads, dim=channels // key_heads * (width - 1), dtype="bfloat16", itemsize=2
            ),
        )
    )


LATENT = KeptTokens(planes=(Plane(name="latent", heads=1, dim=576, dtype="bfloat16", itemsize=2),))
GEMMA = [attention(1, 256) if layer % 6 == 5 else attention(1, 256, window=512) for layer in range(18)]
GEMMA3_4B = [attention(4, 256) if layer % 6 == 5 else attention(4, 256, window=1024) for layer in range(34)]
QWEN_NEXT = [attention(2, 256) if layer % 4 == 3 else recurrent(16, 32, 128) for layer in range(48)]
SHAPES: dict[str, list[Kept]] = {
    "SmolLM2-135M": [attention(3, 64)] * 30,
    "Gemma-3-270M": GEMMA,
    "Gemma-3-4B": GEMMA3_4B,
    "DeepSeek-V2-Lite": [LATENT] * 27,
    "Qwen3-Next-80B": QWEN_NEXT,
}


@pytest.mark.parametrize("name", SHAPES)
def test_little_is_wasted_on_shapes_that_people_run(name: str, record_property: Callable[[str, object], None]) -> None:
    geometry = solve(layers(*SHAPES[name]))
    print(f"\n{name}:", *geometry.describe(), sep="\n  ")
    record_property("padding", geometry.padding())
    assert 0 <= geometry.padding() < 0.05
    for group in geometry.groups:
        units = len(group.layers) * group.parts
        assert group.layer_bytes * group.bundle <= geometry.page_bytes
        assert group.bundle * (group.pages_per_block - 1) < units <= group.bundle * group.pages_per_block
        assert group.parts == 1 or group.bundle == 1
        assert group.block % geometry.hash_unit == 0
