"""What a start leaves to do: no kernel is compiled by common steps, and a pool that cannot be is refused."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.base.errors import ConfigError
from tests.models.families import FAMILIES
from tests.models.oracle import make_oracle, random_tokens

pytestmark = pytest.mark.gpu


def test_common_steps_find_their_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    make_oracle("qwen3", {"max_position_embeddings": 4096}).save_pretrained(tmp_path)
    options: dict[str, Any] = {
        "dtype": "bfloat16",
        "max_num_batched_tokens": 4096,
        "num_pages": 4096,
        "max_num_seqs": 64,
    }
    missed = list[str]()
    with LLM(tmp_path, skip_tokenizer_init=True, device="cuda", max_model_len=4000, **options) as llm:
        for thread in threading.enumerate():
            if thread.name.startswith("octavo-compile"):
                thread.join()
        monkeypatch.setattr(
            knobs.compilation, "listener", lambda *, src, cache_hit, **_: cache_hit or missed.append(src.name)
        )
        for lengths in ([3], [40], [700], [3000], [5] * 40, [3, 200, 900] * 6):
            for temperature in (0.0, 0.8):
                prompts: Any = [{"prompt_token_ids": random_tokens(length, seed=length)} for length in lengths]
                params = SamplingParams(temperature=temperature, top_p=0.9, max_tokens=12, ignore_eos=True, seed=1)
                llm.generate(prompts, params, use_tqdm=False)
                llm.reset_prefix_cache()
    assert missed == []


def test_more_pages_than_the_card_has(tmp_path: Path) -> None:
    FAMILIES["LlamaForCausalLM"].write(tmp_path)
    with pytest.raises(ConfigError, match=r"num_pages must be at most \d+, not 99999999, which take .* MiB free, less"):
        LLM(tmp_path, skip_tokenizer_init=True, device="cuda", num_pages=99_999_999)
