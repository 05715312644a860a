"""Tiny models of each kind, the prompts, and what `transformers` answers to them. A new kind is one row of `MODELS`."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import models, pre_tokenizers

from octavo.engine.kvcache.geometry import solve
from tests.models.oracle import assemble_folder, make_oracle, random_tokens
from tests.models.witnesses import BORROWING, DELTA, LATENT, MOE, settled

VOCAB, EOS = 151, 2
# Model type, options of its configuration beyond SIZES, and a seed of its weights with which answers differ and do not run in
# circles. The windows of two layers together see why prompts differ.
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    "llama": ("llama", {}, 0),
    "mistral": ("mistral", {"sliding_window": 32}, 2),
    "qwen3": ("qwen3", {}, 1),
    "qwen3-two-groups": ("qwen3", {"use_sliding_window": True, "sliding_window": 13, "max_window_layers": 1}, 0),
    "experts": ("qwen3_moe", MOE, 7),
    "latent": ("deepseek_v2", {**LATENT, "num_key_value_heads": 4, "num_hidden_layers": 2}, 1),
    "states": (
        "qwen3_next",
        {**DELTA, "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
        1,
    ),
    "borrowed-pages": (
        "gemma4_text",
        {**BORROWING, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "vocab_size_per_layer_input": VOCAB}
        | {"layer_types": ["sliding_attention", "full_attention"] * 2},
        13,
    ),
}
# Features that a model is not asked to have: ranks take seconds to start, so that three kinds have them.
PLAIN: dict[str, tuple[str, ...]] = dict.fromkeys(MODELS.keys() - {"llama", "experts", "latent"}, ("ranks",))
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
MAX_MODEL_LEN = 192
MAX_CHOICES = 3
# Below these distances a rounding difference may change a token: between the two likeliest logits, and between the random
# number and the ends of its token's share.
GREEDY_TIE, DRAWN_TIE = 1e-3, 1e-5


# Answers of words with odd numbers, to which no end can come.
FORM = {"regex": "(<[0-9][0-9][13579]>)*<end>"}
PENALTIES = {"presence_penalty": 0.125, "frequency_penalty": -0.0625, "repetition_penalty": 1.25}


def _prompts() -> tuple[list[int], ...]:
    """Prompts with common beginnings that end inside and at the end of blocks, and lengths around those of blocks."""
    stem, other = random_tokens(100, VOCAB, seed=100), random_tokens(16, VOCAB, seed=101)
    related = [stem[:70], stem[:70], stem[:48] + other, stem[:64], stem[:65], stem[:96] + other[:4]]
    # The same block behind another beginning is another block.
    moved = [other + stem[16:70], stem[16:80]]
    lengths = (1, 2, 15, 16, 17, 31, 32, 33, 47, 100)
    growers = [random_tokens(14, VOCAB, seed=seed) for seed in (102, 103)]
    return (*growers, *related, *moved, *(random_tokens(length, VOCAB, seed=200 + length) for length in lengths))


PROMPTS = _prompts()
# Two short prompts with long answers: together they outgrow a pool in which everybody fits alone.
GROWERS, GROWN, LONGEST_ANSWER = (0, 1), 64, 24
# Longer than the largest block.
CACHEABLE = (2, 3, 6, 7, 8)


@dataclass(frozen=True, slots=True)
class Expected:
    """The oracle's answer, as long as a request may ask for. num_certain: tokens before the first tie."""

    tokens: list[int]
    logprobs: list[float]
    num_certain: int


@dataclass(slots=True)
class _Row:
    """An answer that grows. certain: whether no tie has come."""

    penalized: bool
    formed: bool
    prompt: int
    choice: int | None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    num_certain: int = 0
    certain: bool = True

    def take(self, logits: np.ndarray) -> None:
        """Append the token that follows, given the logits, float64 [V]."""
        text = [*PROMPTS[self.prompt], *self.tokens]
        changed = _penalized(logits, text, len(PROMPTS[self.prompt])) if self.penalized else logits
        if self.formed:
            changed = np.where(np.arange(len(changed)) % 2, changed, -np.inf)
        if self.choice is None:
            token, sure = _likeliest(changed)
        else:
            token, sure = _drawn(changed, self.prompt, self.choice, len(text))
        self.certain &= bool(sure)
        self.num_certain += self.certain
        self.tokens.append(token)
        self.logprobs.append(float(logits[token] - np.logaddexp.reduce(logits)))


def words(ids: Sequence[int]) -> str:
    """Return the text of token ids."""
    return " ".join(f"<{index:03}>" for index in ids)


def ids_of(text: str) -> list[int]:
    """Return the token ids of a text."""
    return [int(word.strip("<>")) for word in text.split()]


def seed_of(prompt: int) -> int:
    """Return the seed with which this prompt's answers are drawn."""
    return 1000 + prompt


class TinyModel:
    """A row of MODELS, saved in a folder with a tokenizer whose every token is a word."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.path = folder / name
        model_type, options, seed = MODELS[name]
        self._oracle = settled(make_oracle(model_type, {**SIZES, **options}, seed=seed))
        self._oracle.save_pretrained(self.path)
        core = tokenizers.Tokenizer(models.WordLevel({words([index]): index for index in range(VOCAB)}, words([0])))
        core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        core.save(str(self.path / "tokenizer.json"))
        (self.path / "chat_template.jinja").write_text("{{ messages }}")

    def small_pool(self, block: int) -> int:
        """Return a number of pages that two growers outgrow, though every prompt fits alone."""
        geometry = solve(self._layers, block)
        # The last token of an answer is not computed. A window may or may not reach into one block more.
        grown = geometry.pages_of(max(len(PROMPTS[prompt]) for prompt in GROWERS) + GROWN - 1)
        spare = sum(group.pages_per_block for group in geometry.groups if group.window is not None)
        return max(2 * (grown - spare) - 1, geometry.pages_of(max(map(len, PROMPTS)) + LONGEST_ANSWER))

    @functools.cached_property
    def _layers(self) -> Any:
        return assemble_folder(self.path).layers

    def expected(self, *, penalized: bool, formed: bool = False) -> dict[tuple[int, int | None], Expected]:
        """Return the oracle's answers by prompt and choice; choice None is greedy."""
        return self._answers[penalized, formed]

    @functools.cached_property
    def _answers(self) -> dict[tuple[bool, bool], dict[tuple[int, int | None], Expected]]:
        """All answers, without and with penalties and forms."""
        kinds = list(itertools.product((False, True), repeat=2))
        found: dict[tuple[bool, bool], dict[tuple[int, int | None], Expected]] = {kind: {} for kind in kinds}
        for prompt in range(len(PROMPTS)):
            rows = [_Row(*kind, prompt, choice) for kind in kinds for choice in (None, *range(MAX_CHOICES))]
            self._continue(rows, GROWN if prompt in GROWERS else LONGEST_ANSWER)
            for row in rows:
                found[row.penalized, row.formed][prompt, row.choice] = Expected(
                    row.tokens, row.logprobs, row.num_certain
                )
        return found

    @torch.inference_mode()
    def _continue(self, rows: list[_Row], num_tokens: int) -> None:
        """Let answers to one prompt grow, all together, with the oracle's own cache."""
        ids, cache = torch.tensor([PROMPTS[rows[0].prompt]] * len(rows)), None
        # Older versions of transformers call it otherwise.
        name = "cache" if "cache" in inspect.signature(self._oracle.forward).parameters else "past_key_values"
        for _ in range(num_tokens):
            out = self._oracle(ids, use_cache=True, **{name: cache})
            cache = out[name]
            for row, logits in zip(rows, out.logits[:, -1].double().numpy(), strict=True):
                row.take(logits)
            ids = torch.tensor([row.tokens[-1:] for row in rows])

    @torch.inference_mode()
    def last_logits(self, text: list[int]) -> np.ndarray:
        """Return the oracle's logits after a text, float64 [V]."""
        return self._oracle(torch.tensor([text]), use_cache=False).logits[0, -1].double().numpy()

    @functools.cached_property
    def prompt_logprobs(self) -> list[list[float]]:
        """The oracle's log-probabilities of every prompt's tokens but the first."""
        return [self.logprobs_of(prompt) for prompt in PROMPTS]

    @torch.inference_mode()
    def logprobs_of(self, text: list[int]) -> list[float]:
        """Return the oracle's log-probabilities of a text's tokens but the first, computed in one piece."""
        logits = self._oracle(torch.tensor([text]), use_cache=False).logits[0, :-1].double()
        tokens = torch.tensor(text[1:], dtype=torch.int64)[:, None]
        return torch.log_softmax(logits, -1).gather(1, tokens)[:, 0].tolist()


def _penalized(logits: np.ndarray, text: list[int], num_prompt: int) -> np.ndarray:
    """Apply PENALTIES as their definition says."""
    counts = np.bincount(text[num_prompt:], minlength=len(logits))
    seen, repetition = np.bincount(text, minlength=len(logits)) > 0, PENALTIES["repetition_penalty"]
    changed = np.where(seen, np.where(logits > 0, logits / repetition, logits * repetition), logits)
    return changed - PENALTIES["frequency_penalty"] * counts - PENALTIES["presence_penalty"] * (counts > 0)


def _likeliest(logits: np.ndarray) -> tuple[int, bool]:
    second, first = np.partition(logits, -2)[-2:]
    return int(logits.argmax()), first - second >= GREEDY_TIE


def _drawn(logits: np.ndarray, prompt: int, choice: int, position: int) -> tuple[int, bool]:
    """Invert the distribution function of temperature 1 at the request's random number, in id order."""
    reached = np.exp(logits - np.logaddexp.reduce(logits)).cumsum()
    number = _uniform(seed_of(prompt), choice, position) * reached[-1]
    token = int(np.searchsorted(reached, number, side="right"))
    return token, np.abs(reached - number).min() >= DRAWN_TIE


def _uniform(*key: int) -> float:
    """Return the number in [0, 1) of (seed, choice, position): SplitMix64, chained once per part, its 52 upper bits."""
    state, mask = 0, 2**64 - 1
    for part in key:
        state = state + (part + 1) * 0x9E3779B97F4A7C15 & mask
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
        state = (state ^ state >> 27) * 0x94D049BB133111EB & mask
        state ^= state >> 31
    return (state >> 12) * 2.0**-52
