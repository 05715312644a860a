"""Offline scripts as users of vLLM write them: they run with nothing changed but the package in the import.

Each ends in prints; what has to be in them stands beside it.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from tests.frontend.bytes_model import EOS, make_core
from tests.models.encoders import make_bert
from tests.models.oracle import make_oracle

# Name -> (script, a pattern that its output has to match). MODEL and VECTORS are folders.
SCRIPTS: dict[str, tuple[str, str]] = {
    "basic": (
        """
from vllm import LLM, SamplingParams
prompts = ["Hello, my name is", "The president of the United States is", "The future of AI is"]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)
llm = LLM(model=MODEL)
for output in llm.generate(prompts, sampling_params):
    print(f"Prompt: {output.prompt!r}, tokens: {len(output.outputs[0].token_ids)}")
""",
        r"Prompt: 'Hello, my name is', tokens: \d+\nPrompt: 'The pres.*\nPrompt: 'The fut.*\n$",
    ),
    "chat": (
        """
from vllm import LLM, SamplingParams
llm = LLM(model=MODEL, max_model_len=200)
conversation = [{"role": "system", "content": "You are helpful"}, {"role": "user", "content": "Hello"}]
outputs = llm.chat(conversation, SamplingParams(temperature=0.5, max_tokens=6, ignore_eos=True), use_tqdm=False)
print(outputs[0].prompt is None or outputs[0].prompt, len(outputs[0].outputs[0].token_ids))
""",
        r" 6\n$",
    ),
    "chats in a batch": (
        """
from vllm import LLM, SamplingParams
llm = LLM(model=MODEL)
conversations = [[{"role": "user", "content": f"Question {i}"}] for i in range(10)]
outputs = llm.chat(messages=conversations, sampling_params=llm.get_default_sampling_params(), use_tqdm=True)
print(len(outputs), all(output.finished for output in outputs))
""",
        r"10 True",
    ),
    "chat template of one's own": (
        """
from vllm import LLM, SamplingParams
llm = LLM(model=MODEL)
template = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
outputs = llm.chat([{"role": "user", "content": "Hi"}], SamplingParams(max_tokens=2), chat_template=template)
print(bytes(outputs[0].prompt_token_ids).decode())
""",
        r"<user>Hi",
    ),
    "token ids": (
        """
from vllm import LLM, SamplingParams, TokensPrompt
llm = LLM(model=MODEL)
tokenizer = llm.get_tokenizer()
ids = tokenizer.encode("What is an LLM?")
outputs = llm.generate([TokensPrompt(prompt_token_ids=ids)], SamplingParams(max_tokens=3, ignore_eos=True))
print(outputs[0].prompt_token_ids == list(ids), len(outputs[0].outputs[0].token_ids))
""",
        r"True 3",
    ),
    "token ids without a tokenizer": (
        """
from vllm import LLM, SamplingParams
llm = LLM(model=MODEL, skip_tokenizer_init=True)
params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True, detokenize=False)
outputs = llm.generate([{"prompt_token_ids": [72, 105]}, {"prompt_token_ids": [80]}], params)
print([len(o.outputs[0].token_ids) for o in outputs], repr(outputs[0].outputs[0].text))
""",
        r"\[5, 5\] ''",
    ),
    "text prompt": (
        """
from vllm import LLM, SamplingParams, TextPrompt
llm = LLM(model=MODEL, seed=1)
outputs = llm.generate(TextPrompt(prompt="Once"), sampling_params=SamplingParams(max_tokens=1), use_tqdm=False)
print(outputs[0].prompt, outputs[0].outputs[0].finish_reason)
""",
        r"Once (length|stop)",
    ),
    "dummy weights": (
        """
from vllm import LLM, SamplingParams
llm = LLM(model=MODEL, load_format="dummy", enforce_eager=True, max_num_seqs=16, max_num_batched_tokens=64)
prompts = [{"prompt_token_ids": list(range(30))} for _ in range(20)]
outputs = llm.generate(prompts, SamplingParams(n=1, temperature=1.0, top_p=1.0, ignore_eos=True, max_tokens=8))
print(sum(len(o.outputs[0].token_ids) for o in outputs))
""",
        r"160",
    ),
    "several choices": (
        """
from vllm import LLM, SamplingParams
llm = LLM(model=MODEL)
outputs = llm.generate(["Tell me a joke"], SamplingParams(n=4, temperature=1.0, max_tokens=12, ignore_eos=True, seed=5))
print([c.index for c in outputs[0].outputs], len({tuple(c.token_ids) for c in outputs[0].outputs}))
""",
        r"\[0, 1, 2, 3\] 4",
    ),
    "parameters for each prompt": (
        """
from vllm import LLM, SamplingParams
llm = LLM(model=MODEL)
params = [SamplingParams(temperature=0, max_tokens=m, ignore_eos=True) for m in (1, 2, 3)]
print([len(o.outputs[0].token_ids) for o in llm.generate(["a", "b", "c"], params)])
""",
        r"\[1, 2, 3\]",
    ),
    "seeds": (
        """
from vllm import LLM, SamplingParams
llm = LLM(model=MODEL)
params = SamplingParams(temperature=1.0, seed=42, max_tokens=10, ignore_eos=True)
first = llm.generate("A", params)[0].outputs[0].token_ids
again = llm.generate(["B", "A", "C"], params)[1].outputs[0].token_ids
print(first == again)
""",
        r"True",
    ),
    "log-probabilities": (
        """
from vllm import LLM, SamplingParams
llm = LLM(model=MODEL, max_logprobs=5)
output = llm.generate("Hi", SamplingParams(temperature=0, max_tokens=2, logprobs=5, prompt_logprobs=1, ignore_eos=True))[0]
best = output.outputs[0].logprobs[0]
print(len(best), best[output.outputs[0].token_ids[0]].rank, output.prompt_logprobs[0], len(output.prompt_logprobs))
""",
        r"5 1 None 2",
    ),
    "prefix cache": (
        """
from vllm import LLM, SamplingParams
prefix = "You are an expert school principal, skilled in effectively managing faculty and staff. " * 2
llm = LLM(model=MODEL, enable_prefix_caching=True, gpu_memory_utilization=0.4, block_size=16)
params = SamplingParams(temperature=0.0, max_tokens=4)
cold = llm.generate(prefix + "Draft an email", params)[0]
warm = llm.generate(prefix + "Draft an email", params)[0]
print(cold.outputs[0].text == warm.outputs[0].text, cold.num_cached_tokens, warm.num_cached_tokens > 100)
print(llm.reset_prefix_cache())
""",
        r"True 0 True\nTrue",
    ),
    "chunked prefill": (
        """
from vllm import LLM, SamplingParams
llm = LLM(MODEL, enable_chunked_prefill=True, max_num_batched_tokens=16, max_num_seqs=4)
outputs = llm.generate(["x" * 100] * 6, SamplingParams(temperature=0, max_tokens=4))
print(len({tuple(o.outputs[0].token_ids) for o in outputs}))
""",
        r"^1\n",
    ),
    "stop strings": (
        """
from vllm import LLM, SamplingParams
llm = LLM(model=MODEL)
plain = llm.generate("Q", SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))[0].outputs[0]
stop = plain.token_ids[3]
cut = llm.generate("Q", SamplingParams(temperature=0, max_tokens=8, stop_token_ids=[stop], min_tokens=1))[0].outputs[0]
print(cut.finish_reason, cut.stop_reason == stop, len(cut.token_ids) <= 4)
""",
        r"stop True True",
    ),
    "penalties and biases": (
        """
from vllm import LLM, SamplingParams
llm = LLM(model=MODEL)
params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logit_bias={65: 100.0}, frequency_penalty=0.5)
print(llm.generate("Q", params)[0].outputs[0].text)
only = SamplingParams(temperature=1, max_tokens=6, ignore_eos=True, allowed_token_ids=[66], repetition_penalty=1.2)
print(llm.generate("Q", only)[0].outputs[0].text)
""",
        r"AAAAAA\nBBBBBB",
    ),
    "beam search": (
        """
from vllm import LLM, BeamSearchParams
llm = LLM(model=MODEL)
outputs = llm.beam_search([{"prompt": "Hello"}], BeamSearchParams(beam_width=3, max_tokens=4))
scores = [s.cum_logprob for s in outputs[0].sequences]
print(len(scores), scores == sorted(scores, reverse=True))
""",
        r"3 True",
    ),
    "logits processors": (
        """
from vllm import LLM, SamplingParams
def only_z(token_ids, logits):
    kept = logits[90].clone()
    logits[:] = float("-inf")
    logits[90] = kept
    return logits
llm = LLM(model=MODEL)
print(llm.generate("Q", SamplingParams(max_tokens=3, logits_processors=[only_z]))[0].outputs[0].text)
""",
        r"ZZZ",
    ),
    "vectors": (
        """
from vllm import LLM
llm = LLM(model=VECTORS, enforce_eager=True)
outputs = llm.embed(["Hello, my name is", "The capital of France is"])
print(len(outputs), len(outputs[0].outputs.embedding), len({tuple(o.outputs.embedding) for o in outputs}))
""",
        r"2 48 2",
    ),
    "into the model": (
        """
from vllm import LLM
llm = LLM(model=MODEL, dtype="float32")
print(llm.apply_model(lambda model: sum(p.numel() for p in model.parameters()) > 1000))
print(len(llm.collective_rpc(lambda worker: type(worker).__name__)))
""",
        r"\[True\]\n1",
    ),
    "metrics": (
        """
from vllm import LLM, SamplingParams
llm = LLM(model=MODEL, disable_log_stats=False)
llm.generate(["a"] * 3, SamplingParams(max_tokens=4, ignore_eos=True))
for metric in llm.get_metrics():
    if metric.name.endswith("generation_tokens"):
        print(metric.name, metric.samples[0].value)
""",
        r":generation_tokens 12\n",
    ),
    "tensor parallel": (
        """
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    llm = LLM(model=MODEL, tensor_parallel_size=2, distributed_executor_backend="mp", kv_cache_memory_bytes=2**22)
    outputs = llm.generate(["Hello", "World"], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    print([len(o.outputs[0].token_ids) for o in outputs])
    llm.shutdown()
""",
        r"\[3, 3\]",
    ),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    found: dict[str, str] = {}
    model = {"vocab_size": 300, "max_position_embeddings": 512, "eos_token_id": EOS, "num_attention_heads": 4}
    for name, oracle in (("MODEL", make_oracle("llama", model)), ("VECTORS", make_bert())):
        folder = Path(tmp_path_factory.mktemp(name.lower()))
        oracle.save_pretrained(folder)
        make_core().save(str(folder / "tokenizer.json"))
        (folder / "chat_template.jinja").write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
        found[name] = str(folder)
    return found


def test_there_are_twenty_at_least() -> None:
    assert len(SCRIPTS) >= 20


@pytest.mark.parametrize("name", SCRIPTS)
def test_one_import_is_changed(folders: dict[str, str], name: str) -> None:
    source, shown = SCRIPTS[name]
    ours, changed = re.subn(r"^from vllm import", "from octavo import", source, flags=re.MULTILINE)
    assert changed == 1
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(ours, name, "exec"), {"__name__": "__main__", **folders})
    assert re.search(shown, said.getvalue()), said.getvalue()
