"""On a GPU, with graphs, plans ahead and chunks: the answers of the float32 oracle on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from octavo import LLM, SamplingParams
from tests.equivalence.draw import draw_cases
from tests.equivalence.features import costly
from tests.equivalence.models import MODELS, TinyModel
from tests.equivalence.runner import Report, Runner
from tests.models.families import FAMILIES
from tests.models.measure import measure_tokens
from tests.models.oracle import make_oracle, oracle_logits, random_tokens

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_in_float32(tmp_path: Path, name: str, eager: bool) -> None:
    found = measure_tokens(FAMILIES[name].write(tmp_path), tmp_path, device="cuda", enforce_eager=eager)
    assert found.wrong == 0
    assert found.near <= 3
    assert found.distinct > 10
    assert found.cached > 100


@pytest.mark.parametrize("name", MODELS)
def test_whatever_is_on_the_answers_are_the_same(tmp_path: Path, name: str) -> None:
    model, report = TinyModel(name, tmp_path), Report()
    Runner(model, report).run([case for case in draw_cases(40, seed=3) if not costly(case.values)])
    print(f"{name}: {report}")
    assert report.differences == [], "\n" + "\n".join(report.differences)
    assert report.cases > 20


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3_text"])
def test_bfloat16_follows_float32(tmp_path: Path, kind: str) -> None:
    """Teacher-forced: the likeliest token after every prefix of a text, and its log-probability, of the same narrow weights."""
    options: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_attention_heads": 4}
    oracle = make_oracle(kind, {**options, "num_key_value_heads": 2})
    with torch.no_grad():
        for parameter in oracle.parameters():
            if parameter.ndim > 1:
                parameter.mul_(0.2)
    oracle = oracle.to(torch.bfloat16)
    oracle.save_pretrained(tmp_path)
    text = random_tokens(96)
    expected = oracle_logits(oracle.float(), text).log_softmax(-1)
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=1, detokenize=False)
    prompts: list[Any] = [{"prompt_token_ids": text[: count + 1]} for count in range(len(text))]
    # Other tests share the card.
    narrow: dict[str, Any] = {"device": "cuda", "dtype": "bfloat16", "max_num_seqs": 16, "kv_cache_memory": 2**30}
    with LLM(tmp_path, skip_tokenizer_init=True, **narrow) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    best = expected.topk(2, -1)
    errors, wrong = list[float](), 0
    for position, output in enumerate(outputs):
        (token,), (entry,) = output.outputs[0].token_ids, output.outputs[0].logprobs or ()
        errors.append(abs(entry[token].logprob - float(expected[position, token])))
        gap = float(best.values[position, 0] - best.values[position, 1])
        wrong += token != int(best.indices[position, 0]) and gap > 0.1
    print(f"{kind}: mean {sum(errors) / len(errors):.4f}, largest {max(errors):.4f}")
    assert wrong == 0
    assert sum(errors) / len(errors) < 0.02
    assert max(errors) < 0.1


def test_the_ledger_is_the_drivers(tmp_path: Path) -> None:
    FAMILIES["LlamaForCausalLM"].write(tmp_path)
    with LLM(tmp_path, skip_tokenizer_init=True, device="cuda", dtype="float32", kv_cache_memory=2**30) as llm:
        llm.generate([{"prompt_token_ids": [5, 6, 7]}], SamplingParams(max_tokens=20), use_tqdm=False)
        local: Any = llm._local
        runner = local.engine.core._executor._runner
        report, total = runner.ledger.report(), runner.device.facts.total_memory
        free, _ = torch.cuda.mem_get_info()  # noqa: TID251
    assert sum(report.values()) == total
    assert abs(report["free"] - free) < 0.02 * total
    assert report["pool"] > 0.3 * total
    assert 0.5 * total < free + 0.02 * total, "the cap holds"
