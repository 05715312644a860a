"""Measures a model against its oracle, and writes docs/models.md from what came out: `python -m tests.models.measure`."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo import LLM, SamplingParams
from octavo.checkpoint.architectures import architectures
from tests.arch.sources import ROOT
from tests.models.encoders import make_bart, make_bert, tokens_differ, vectors_differ
from tests.models.families import ENCODERS, FAMILIES, Family
from tests.models.oracle import assemble_folder, oracle_logits, random_tokens
from tests.models.paged_run import PagedRun
from tests.worker.engine import SmallEngine

PAGE = ROOT / "docs" / "models.md"
NUM_TOKENS = 64
# The oracle's best two logits may be this near before another token than its own is no fault.
NEAR = 1e-3
# As in a server: some prompts begin alike, some are shorter than a block, and none fits a step together with the others.
PROMPTS = [
    random_tokens(40, seed=2) + random_tokens(11, seed=3),
    random_tokens(40, seed=2) + random_tokens(25, seed=4),
    random_tokens(3, seed=5),
    random_tokens(33, seed=6),
    random_tokens(40, seed=2),
]
ENGINE: dict[str, Any] = {
    "device": "cpu",
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "block_size": 16,
    "mamba_block_size": 16,
    "num_pages": 512,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 24,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """logits: the largest difference, over chunks and single tokens. wrong: tokens that differ. near: that may. distinct: ids."""

    logits: float
    wrong: int
    near: int
    distinct: int
    cached: int


def measure(family: Family, folder: Path) -> Measured:
    """Write the family's checkpoint into `folder` and compare logits and greedy tokens."""
    oracle = family.write(folder)
    tokens = random_tokens(75)
    found = PagedRun(assemble_folder(folder)).prefill_and_decode(tokens, [7, 33, 16])
    difference = float((found - oracle_logits(oracle, tokens)).abs().max())
    return dataclasses.replace(measure_tokens(oracle, folder), logits=difference)


def measure_tokens(oracle: Any, folder: Path, **options: Any) -> Measured:
    """Compare greedy tokens of an engine with these options, first cold and then from the prefix cache."""
    greedy = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False)
    prompts: list[Any] = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    with LLM(folder, **{**ENGINE, **options}) as llm:
        cold, warm = (llm.generate(prompts, greedy, use_tqdm=False) for _ in range(2))
    checked = [
        _check(oracle, prompt, output.outputs[0].token_ids)
        for outputs in (cold, warm)
        for prompt, output in zip(PROMPTS, outputs, strict=True)
    ]
    return Measured(
        logits=0.0,
        wrong=sum(wrong for wrong, _ in checked),
        near=sum(near for _, near in checked),
        distinct=len({token for output in cold for token in output.outputs[0].token_ids}),
        cached=sum(output.num_cached_tokens for output in warm),
    )


def measure_encoder(name: str, folder: Path) -> Measured:
    """Measure a model with an encoder: BERT by its vectors; BART by log-probabilities of the tokens it chose."""
    oracle = make_bert() if name == "BertModel" else make_bart()
    oracle.save_pretrained(folder)
    if name == "BertModel":
        return Measured(logits=vectors_differ(folder, oracle), wrong=0, near=0, distinct=0, cached=0)
    engine = SmallEngine(folder)
    largest, wrong, near = tokens_differ(engine, oracle, NUM_TOKENS)
    engine.close()
    distinct = len({token for ids in engine.ids.values() for token in ids})
    return Measured(logits=largest, wrong=wrong, near=near, distinct=distinct, cached=0)


def _check(oracle: Any, prompt: Sequence[int], answer: Sequence[int]) -> tuple[int, int]:
    """Return how many tokens of an answer are not the oracle's best after what stands before, and may not or may be so."""
    assert len(answer) == NUM_TOKENS
    logits = oracle_logits(oracle, [*prompt, *answer])[len(prompt) - 1 : -1]
    best = logits.topk(2, -1)
    gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
    differ = [gap for token, ours, gap in zip(best.indices[:, 0].tolist(), answer, gaps, strict=True) if token != ours]
    near = sum(gap < NEAR for gap in differ)
    return len(differ) - near, near


def described() -> dict[str, tuple[str, int]]:
    """Return every architecture's file, and its lines."""
    files = {name: f"{architectures().path(name).partition(':')[0].replace('.', '/')}.py" for name in architectures()}
    return {name: (file, len((ROOT / file).read_text(encoding="utf-8").splitlines())) for name, file in files.items()}


def row(name: str, result: Measured) -> str:
    """Return a line of the page."""
    file, lines = described()[name]
    equal = "all" if not result.wrong else f"all but {result.wrong}"
    equal = "vectors" if name == "BertModel" else equal
    return f"| {name} | `{file}` | {lines} | {result.logits:.0e} | {equal} | {result.near} |"


_HEAD = """# Models

Written by `python -m tests.models.measure`; a test compares names, files and lines, and measures anew. Each row is a tiny model
with every parameter random, in float32, against transformers: the largest difference of any logit, over a prompt in chunks and
then token by token on scattered pages; and {tokens} greedy tokens of {prompts} prompts through the engine, first cold and then
from the prefix cache, at most {max_num_batched_tokens} tokens a step and {max_num_seqs} sequences side by side. Where the
oracle's two best logits are within {near:.0e}, another token is no fault; the last column counts those. Of models with an
encoder the difference is that of vectors, or of log-probabilities, and there is no prefix cache.

| architecture | file | lines | max logit difference | greedy tokens equal | near ties |
|---|---|---|---|---|---|
"""


def main() -> None:
    """Measure all and write the page."""
    rows: list[str] = []
    for name, family in FAMILIES.items():
        with tempfile.TemporaryDirectory() as folder:
            rows.append(row(name, measure(family, Path(folder))))
            print(rows[-1], flush=True)
    for name in ENCODERS:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(row(name, measure_encoder(name, Path(folder))))
    head = _HEAD.format(tokens=NUM_TOKENS, prompts=len(PROMPTS), near=NEAR, **ENGINE)
    PAGE.write_text(head + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
