"""Models with an encoder: their oracles, and what they give through a whole engine, beside what the oracle gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModel, AutoModelForSeq2SeqLM

from octavo.protocol.pooling import Pooling, PoolingParams
from tests.models.oracle import make_oracle, random_tokens
from tests.worker.engine import SmallEngine

START = 2
BART = {
    "intermediate_size": ...,
    "num_hidden_layers": ...,
    "num_attention_heads": ...,
    "num_key_value_heads": ...,
    "head_dim": ...,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 56,
    "decoder_ffn_dim": 72,
    "pad_token_id": 1,
    "decoder_start_token_id": START,
}
INPUTS = [random_tokens(length, seed=length) for length in (23, 1, 40, 17)]
BEGINNINGS = [[START], [START, 7, 9], [START], [START, *random_tokens(20, seed=5)]]
PROMPTS = [random_tokens(length, seed=length) for length in (1, 7, 30, 18, 50)]
ASKED: list[Pooling] = ["mean", "cls", "last", "mean", "cls"]


def make_bert() -> Any:
    """Return an encoder whose every parameter is random."""
    return make_oracle("bert", {"pad_token_id": 0}, auto=AutoModel)


def make_bart(**options: Any) -> Any:
    """Return an encoder and decoder whose every parameter is random, the head's bias too.

    Layers and positions are strong: a token's own embedding would decide all that follows, as the head is tied to it.
    """
    oracle = make_oracle("bart", {**BART, **options}, auto=AutoModelForSeq2SeqLM)
    for name, parameter in oracle.named_parameters():
        parameter.data *= 3 if "positions" in name else 2 if ".layers." in name and parameter.ndim == 2 else 1
    return oracle


@torch.inference_mode()
def pooled(model: Any, prompt: Sequence[int], pooling: Pooling, normalize: bool) -> Tensor:
    """Return the oracle's vector of a prompt."""
    hidden = model(torch.tensor([prompt])).last_hidden_state[0]
    vector = {"cls": hidden[0], "last": hidden[-1], "mean": hidden.mean(0)}[pooling]
    return F.normalize(vector, dim=0) if normalize else vector


@torch.inference_mode()
def bart_logits(model: Any, number: int, tokens: Sequence[int]) -> Tensor:
    """Return the oracle's logits of every position of `tokens`, for input `number`."""
    answer = model(torch.tensor([INPUTS[number]]), decoder_input_ids=torch.tensor([tokens]), use_cache=False)
    return answer.logits[0]


def vectors_differ(folder: Path, oracle: Any, *, normalize: bool = False) -> float:
    """Return the largest difference of any number in the vectors of all prompts."""
    engine = SmallEngine(folder)
    for key, (prompt, pooling) in enumerate(zip(PROMPTS, ASKED, strict=True)):
        engine.ask(key, prompt, pooling=PoolingParams(pooling=pooling, normalize=normalize))
    engine.run()
    engine.close()
    expected = [pooled(oracle, prompt, pooling, normalize) for prompt, pooling in zip(PROMPTS, ASKED, strict=True)]
    return max(
        float((torch.from_numpy(engine.vectors[key]) - vector).abs().max()) for key, vector in enumerate(expected)
    )


def tokens_differ(engine: SmallEngine, oracle: Any, count: int, n: int = 1) -> tuple[float, int, int]:
    """Serve every input; return the largest difference of a log-probability, and how many tokens may not or may differ."""
    for key, (tokens, beginning) in enumerate(zip(INPUTS, BEGINNINGS, strict=True)):
        engine.ask(key, beginning, count, n=n, encoder=tokens)
    engine.run()
    largest, wrong, near = 0.0, 0, 0
    assert len(engine.ids) == len(INPUTS) * n
    for (key, choice), ids in engine.ids.items():
        assert len(ids) == count
        logits = bart_logits(oracle, key, [*BEGINNINGS[key], *ids])[len(BEGINNINGS[key]) - 1 : -1]
        chosen = logits.log_softmax(-1)[torch.arange(count), torch.tensor(ids)]
        found = torch.tensor(engine.logprobs[key, choice])
        largest = max(largest, float((chosen - found).abs().max()))
        best = logits.topk(2, -1)
        differ = best.indices[:, 0] != torch.tensor(ids)
        close = best.values[:, 0] - best.values[:, 1] < 1e-3
        wrong, near = wrong + int((differ & ~close).sum()), near + int((differ & close).sum())
    return largest, wrong, near
