"""The worker with real model files and weights against `transformers`, float32: plans by hand, plans ahead, greedy ids."""

from __future__ import annotations

import pytest
import torch

from octavo.checkpoint.open import open_checkpoint
from octavo.config.model import ModelConfig
from octavo.engine.kvcache.geometry import solve
from octavo.worker.executors.inproc import InprocExecutor
from octavo.worker.spec import WorkerSpec
from tests.worker.toy import Host

PROMPTS = [[(11 * i + 5 * j * j + j) % 250 for j in range(n)] for i, n in enumerate((1, 7, 16, 33, 70))]
NUM_TOKENS = 12


def make_oracle(kind):
    """A small model whose parameters are all random, norms too."""
    import transformers

    sizes = {
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    }
    sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 256, "head_dim": 16}
    if kind == "llama":
        config = transformers.LlamaConfig(**sizes, tie_word_embeddings=True)
    else:
        config = transformers.MistralConfig(**sizes, sliding_window=24)
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.2)
    return model


@pytest.mark.parametrize("kind", ["llama", "mistral"])
@torch.inference_mode()
def test_greedy_ids_equal_transformers(kind, tmp_path):
    oracle = make_oracle(kind)
    expected = []
    for prompt in PROMPTS:
        tokens = list(prompt)
        for _ in range(NUM_TOKENS):
            best = oracle(torch.tensor([tokens])).logits[0, -1].topk(2)
            assert best.values[0] - best.values[1] > 1e-3  # Nearer ones may differ by rounding.
            tokens.append(int(best.indices[0]))
        expected.append(tokens[len(prompt) :])
    oracle.save_pretrained(tmp_path)

    checkpoint = open_checkpoint(ModelConfig(model=str(tmp_path), skip_tokenizer_init=True))
    executor = InprocExecutor(
        WorkerSpec(
            checkpoint=checkpoint,
            dtype="float32",
            max_model_len=128,
            max_num_seqs=5,
            threads=1,
        )
    )
    report = executor.load()
    assert any("page pool" in decision for decision in report.decisions)
    geometry = solve(report.layers)
    executor.allocate(geometry, 200)
    host = Host(geometry, 200, seed=1)
    # All prefills in chunks, round robin, then decodes; every plan is submitted before any result is read.
    computed, sampled = [0] * len(PROMPTS), [0] * len(PROMPTS)
    for slot, prompt in enumerate(PROMPTS):
        host.admit(slot, prompt)
    owners = []
    while min(sampled) < NUM_TOKENS:
        owners.append([])
        for slot, prompt in enumerate(PROMPTS):
            length = len(prompt)
            if computed[slot] < length:
                count = min(9, length - computed[slot])
                host.chunk(slot, computed[slot], count, computed[slot] + count == length)
                computed[slot] += count
                if computed[slot] < length:
                    continue
            elif sampled[slot] < NUM_TOKENS:
                host.decode(slot, length + sampled[slot])
            else:
                continue
            sampled[slot] += 1
            owners[-1].append(slot)
        executor.submit(host.plan())
    got = [[] for _ in PROMPTS]
    for slots in owners:
        result = executor.collect(60)
        for slot, token in zip(slots, result.ids.tolist(), strict=True):
            got[slot].append(token)
    executor.shutdown()
    assert got == expected
