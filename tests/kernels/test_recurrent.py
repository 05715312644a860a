"""The gated delta rule and its convolution against the formulas, token by token in float64; states that span pages."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.ops.recurrence import StatePages
from tests.kernels.binding import NAN, candidates, kernel

ROWS = [(0, 1), (7, 1), (5, 70), (0, 3), (2, 130), (0, 64)]  # tokens before the step, tokens in it
KEYS, VALUES, DIM, OUT, TAPS = 2, 4, 6, 10, 4
PAGES = 50


class States:
    """Rows whose state spans `parts` pages, which lie scattered in a strided pool; if it moves, to other pages in the step."""

    def __init__(self, heads: int, dim: int, parts: int, moves: bool = True) -> None:
        self.plane = torch.full((PAGES, 3 * heads // parts, 1, dim), NAN)[:, : heads // parts]
        order = torch.randperm(PAGES, generator=torch.Generator().manual_seed(parts))
        before, after = order[: 2 * len(ROWS) * parts].view(2, len(ROWS), parts)
        self.pages = StatePages(
            before=before, after=after if moves else before, fresh=torch.tensor([start == 0 for start, _ in ROWS])
        )
        self.heads, self.parts = heads, parts

    def put(self, row: int, state: Tensor) -> None:
        """Lay a state [heads, dim] where the step finds it."""
        self.plane[self.pages.before[row]] = state.view(self.parts, self.heads // self.parts, 1, -1).float()

    def get(self, row: int) -> Tensor:
        """Return the state after the step."""
        return self.plane[self.pages.after[row]].reshape(self.heads, -1)


def starts() -> Tensor:
    return torch.tensor([0, *(count for _, count in ROWS)], dtype=torch.int32).cumsum(0, dtype=torch.int32)


@pytest.mark.parametrize("name", candidates("gated_delta_rule"))
@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("rate", [0.05, 3.0])
def test_gated_delta_rule(name: str, parts: int, rate: float) -> None:
    generator = torch.Generator().manual_seed(parts)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    states = States(VALUES, DIM * OUT, parts)
    texts, expected, finals = [], [], []
    for row, (before, count) in enumerate(ROWS):
        total = before + count
        q, k, v = draw(total, KEYS, DIM), draw(total, KEYS, DIM), draw(total, VALUES, OUT)
        decay, beta = -rate * draw(total, VALUES).abs(), draw(total, VALUES).sigmoid()
        state, out = torch.zeros(VALUES, DIM, OUT, dtype=torch.float64), []
        for t in range(total):
            if t == before:
                states.put(row, state) if before else None
            unit_q, unit_k = (F.normalize(x[t].double(), dim=-1).repeat_interleave(VALUES // KEYS, 0) for x in (q, k))
            state = state * decay[t].double().exp()[:, None, None]
            wrong = v[t].double() - torch.einsum("hd,hdv->hv", unit_k, state)
            state = state + torch.einsum("hd,h,hv->hdv", unit_k, beta[t].double(), wrong)
            out.append(torch.einsum("hd,hdv->hv", unit_q / DIM**0.5, state))
        texts.append([x[before:] for x in (q, k, v, decay, beta)])
        expected.append(torch.stack(out[before:]))
        finals.append(state)
    inputs = [torch.cat(parts_of) for parts_of in zip(*texts, strict=True)]
    found = kernel("gated_delta_rule", name, "float32")(*inputs, states.plane, states.pages, starts())
    torch.testing.assert_close(found.double(), torch.cat(expected), rtol=1e-4, atol=1e-4)
    for row, final in enumerate(finals):
        torch.testing.assert_close(states.get(row).double(), final.flatten(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", candidates("causal_conv"))
@pytest.mark.parametrize(("parts", "moves"), [(1, True), (2, True), (2, False)])
def test_causal_conv(name: str, parts: int, moves: bool) -> None:
    generator = torch.Generator().manual_seed(parts)
    num_channels = 12
    weight = torch.randn(num_channels, TAPS, generator=generator)
    states = States(2, num_channels // 2 * (TAPS - 1), parts, moves)
    texts, expected, finals = [], [], []
    for row, (before, count) in enumerate(ROWS):
        x = torch.randn(before + count, num_channels, generator=generator)
        padded = torch.cat((torch.zeros(TAPS - 1, num_channels), x))
        if before:
            states.put(row, padded[before : before + TAPS - 1].T.reshape(2, -1))
        filtered = sum(padded[tap : tap + len(x)] * weight[:, tap] for tap in range(TAPS))
        texts.append(x[before:])
        expected.append(F.silu(filtered)[before:])
        finals.append(padded[-(TAPS - 1) :].T.reshape(2, -1))
    found = kernel("causal_conv", name, "float32")(torch.cat(texts), weight, states.plane, states.pages, starts())
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-5, atol=1e-5)
    for row, final in enumerate(finals):
        torch.testing.assert_close(states.get(row), final)
