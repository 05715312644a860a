"""The oracle's answers, and the rule by which ours must equal them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

# Where the oracle's two likeliest logits are closer than this, either may follow, and everything after it.
TIE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Greedy tokens of one prompt, and the gap of the two likeliest logits at each."""

    prompt_ids: list[int]
    tokens: list[int]
    logprobs: list[float]
    gaps: list[float]

    @property
    def num_certain(self) -> int:
        """Tokens before the first tie."""
        return next((i for i, gap in enumerate(self.gaps) if gap < TIE), len(self.gaps))

    def agrees(self, tokens: list[int]) -> bool:
        """Whether tokens equal the oracle's up to its first tie, and are as many."""
        return len(tokens) == len(self.tokens) and tokens[: self.num_certain] == self.tokens[: self.num_certain]


def answers_file(model: str) -> Path:
    """Return where a model's answers are kept."""
    return Path(__file__).parent.parent / "data" / f"{model}_oracle.json"


def read_answers(model: str = "smollm2") -> list[Answer]:
    """Return the oracle's answers to a model's prompts (`tests.real.prompts`), in order."""
    return [Answer(**row) for row in json.loads(answers_file(model).read_text())]
