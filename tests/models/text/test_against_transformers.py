"""Tokens, texts, chats and facts against transformers'."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from octavo.checkpoint.gguf import read_gguf
from octavo.checkpoint.gguf_facts import read_gguf_facts
from octavo.checkpoint.hf_config import read_hf_facts
from octavo.checkpoint.templates import chat_templates
from octavo.frontend.text.chat import ChatTemplate
from octavo.frontend.text.tokenizer import Tokenizer, load_tokenizer
from tests.texts import NUMERALS, TEXTS


@pytest.fixture(scope="module")
def ours(demo_gguf: Path) -> Tokenizer:
    return load_tokenizer(str(demo_gguf))


@pytest.fixture(scope="module")
def theirs(demo_gguf: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(demo_gguf.parent), gguf_file=demo_gguf.name)


@pytest.fixture(scope="module")
def original(theirs: Any) -> Any:
    """With the pre-tokenizer of SmolLM2's own tokenizer.json: transformers leaves digits out when it reads a GGUF file.

    The two differ where several spaces, or one and a numeral of several bytes, come together.
    """
    core = type(theirs.backend_tokenizer).from_str(theirs.backend_tokenizer.to_str())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return core


def test_texts(ours: Tokenizer, theirs: Any, original: Any):
    for text in (*TEXTS, *NUMERALS):
        assert ours.encode(text) == original.encode(text).ids, text
    for text in TEXTS:
        assert ours.encode(text) == theirs(text).input_ids, text
        assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False).input_ids, text


@settings(max_examples=400, deadline=None)
@given(text=st.one_of(st.text(max_size=60), st.text("a 1\n\t<|im_end|>.'sé你😀", max_size=60)))
def test_any_text_as_the_original(ours: Tokenizer, original: Any, text: str):
    assert ours.encode(text) == original.encode(text).ids


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=40), skip=st.booleans())
def test_any_ids_decode_alike(ours: Tokenizer, theirs: Any, ids: list[int], skip: bool):
    assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_names_and_specials(ours: Tokenizer, theirs: Any):
    assert ours.vocab_size == len(theirs)
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    added = theirs.added_tokens_decoder
    assert [i for i in range(49152) if ours.is_special(i)] == sorted(i for i, token in added.items() if token.special)


CHATS: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  Why?\n"}],
    [
        {"role": "user", "content": "a < b & 'c'"},
        {"role": "assistant", "content": "你好 😀"},
        {"role": "user", "content": "<|im_end|>{{ x }}{% y %}"},
    ],
)  # fmt: skip


@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_chats(
    demo_gguf: Path, ours: Tokenizer, theirs: Any, messages: list[dict[str, str]], add_generation_prompt: bool
):
    source = chat_templates(demo_gguf)["default"]
    text = ChatTemplate(source, ours.special_tokens).render(messages, add_generation_prompt=add_generation_prompt)
    options: dict[str, Any] = {"chat_template": source, "add_generation_prompt": add_generation_prompt}
    assert text == theirs.apply_chat_template(messages, tokenize=False, **options)
    ids = theirs.apply_chat_template(messages, tokenize=True, return_dict=True, **options)["input_ids"]
    assert ours.encode(text, add_special_tokens=False) == ids


def test_facts_of_the_embedded_model(demo_gguf: Path):
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(str(demo_gguf.parent), gguf_file=demo_gguf.name)
    facts = read_gguf_facts(read_gguf(str(demo_gguf)))
    assert facts.vocab_size == config.vocab_size
    assert (facts.hidden_size, facts.intermediate_size) == (config.hidden_size, config.intermediate_size)
    assert (facts.num_layers, facts.num_heads) == (config.num_hidden_layers, config.num_attention_heads)
    assert (facts.num_kv_heads, facts.head_dim) == (config.num_key_value_heads, config.head_dim)
    assert facts.max_position == config.max_position_embeddings
    assert facts.norm_eps == pytest.approx(config.rms_norm_eps)
    assert facts.rope.theta == config.rope_parameters["rope_theta"]
    assert facts.tie_embeddings == config.tie_word_embeddings


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen3"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3},
        {"sliding_window": None},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
        {"head_dim": 32, "attention_bias": True, "tie_word_embeddings": True, "eos_token_id": [4, 5]},
    ],
)
def test_facts_of_configurations(tmp_path: Path, name: str, changes: dict[str, Any]):
    """What config.json leaves out is what transformers' own class has."""
    import transformers

    sizes = {
        "vocab_size": 90,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 5,
        "num_attention_heads": 8,
    }
    written = {"architectures": [f"{name}ForCausalLM"], **sizes, **changes}
    (tmp_path / "config.json").write_text(json.dumps(written))
    facts = read_hf_facts(tmp_path) if name != "Qwen3" else read_hf_facts(_with(tmp_path, num_key_value_heads=8))
    config = getattr(transformers, f"{name}Config")(**json.loads((tmp_path / "config.json").read_text()))
    assert (facts.num_kv_heads, facts.head_dim) == (config.num_key_value_heads, config.head_dim)
    assert (facts.max_position, facts.norm_eps) == (config.max_position_embeddings, config.rms_norm_eps)
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    assert list(facts.eos_token_ids) == [end for end in ends if end is not None]
    assert facts.tie_embeddings == config.tie_word_embeddings
    assert facts.rope.kind == config.rope_parameters["rope_type"]
    assert facts.rope.theta == config.rope_parameters["rope_theta"]
    assert facts.rope.factor == config.rope_parameters.get("factor", 1.0)
    if facts.rope.kind == "llama3":
        assert facts.rope.original_max_position == config.rope_parameters["original_max_position_embeddings"]
    if name == "Mistral":
        assert facts.sliding_window == config.sliding_window


def _with(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder
