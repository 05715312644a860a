"""A model of bytes: token ids 0 to 255 are bytes, 256 is <s>, 257 is </s> (ends the text), 258 is <|stop|>."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from octavo.base.facts import ModelFacts, RopeFacts
from octavo.frontend.intake import Intake
from octavo.frontend.text.byte_bpe import byte_characters
from octavo.frontend.text.chat import ChatTemplate
from octavo.frontend.text.tokenizer import Tokenizer
from octavo.protocol.sampling import SamplingParams

BOS, EOS, STOP = 256, 257, 258
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"


def make_core() -> tokenizers.Tokenizer:
    core = tokenizers.Tokenizer(models.BPE(vocab=dict(byte_characters()), merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>", "<|stop|>")])
    return core


def make_tokenizer() -> Tokenizer:
    return Tokenizer(make_core(), {"bos_token": "<s>", "eos_token": "</s>"})


def make_facts() -> ModelFacts:
    return ModelFacts(
        architecture="ByteForCausalLM",
        dtype="float32",
        vocab_size=300,
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        max_position=1024,
        norm_eps=1e-5,
        rope=RopeFacts(dim=8),
        eos_token_ids=(EOS,),
    )


def make_intake(**changes: object) -> Intake:
    given = {
        "facts": make_facts(),
        "max_model_len": 1024,
        "tokenizer": make_tokenizer(),
        "template": ChatTemplate(TEMPLATE),
    }
    return Intake(**(given | changes))  # pyright: ignore[reportArgumentType]


def params(**fields: object) -> SamplingParams:
    return SamplingParams(**({"temperature": 0.0, "max_tokens": 8} | fields))  # pyright: ignore[reportArgumentType]
