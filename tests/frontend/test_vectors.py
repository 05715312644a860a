"""Vectors through `LLM` and `AsyncLLM`: an encoder, and a decoder that is asked for them."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from octavo import LLM, AsyncLLM, PoolingParams, SamplingParams
from octavo.base.errors import InvalidRequestError
from tests.equivalence.models import PROMPTS, TinyModel
from tests.models.encoders import PROMPTS as TEXTS
from tests.models.encoders import make_bert, pooled

OPTIONS = {"max_model_len": 128, "max_num_seqs": 4, "dtype": "float32"}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder, oracle = tmp_path_factory.mktemp("bert"), make_bert()
    oracle.save_pretrained(folder)
    return folder, oracle


def test_an_input_may_be_longer_than_steps_of_this_device_are(bert):
    folder, oracle = bert
    text = [1 + i % 190 for i in range(400)]
    with LLM(folder, skip_tokenizer_init=True, dtype="float32", max_num_seqs=2) as llm:
        (found,) = llm.encode([text], use_tqdm=False)
    np.testing.assert_allclose(found.outputs.data, pooled(oracle, text, "mean", normalize=True).numpy(), atol=1e-4)


def test_an_encoder_embeds_lists_and_lazy_sources(bert):
    folder, oracle = bert
    params = [
        PoolingParams(pooling=p, normalize=n)
        for p, n in zip(("mean", "cls", "last", "mean", "cls"), (1, 0, 1, 0, 1), strict=True)
        for n in (bool(n),)
    ]
    with LLM(folder, skip_tokenizer_init=True, **OPTIONS) as llm:
        found = llm.encode(TEXTS, params, use_tqdm=False)
        lazy = llm.encode((text for text in TEXTS), iter(params), use_tqdm=False)
        for text, asked, one, other in zip(TEXTS, params, found, lazy, strict=True):
            expected = pooled(oracle, text, asked.pooling, normalize=asked.normalize).numpy()
            assert one.outputs.data.dtype == np.float32
            np.testing.assert_allclose(one.outputs.data, expected, atol=1e-4)
            np.testing.assert_allclose(other.outputs.data, expected, atol=1e-4)
            assert (one.prompt_token_ids, one.finished, one.error) == (text, True, None)
        assert [one.request_id for one in found] == ["0", "1", "2", "3", "4"]
        (embedding,) = llm.embed(TEXTS[1], use_tqdm=False)
        assert embedding.outputs.hidden_size == len(embedding.outputs.embedding)
        np.testing.assert_allclose(
            embedding.outputs.embedding, pooled(oracle, TEXTS[1], "mean", normalize=True), atol=1e-4
        )
        assert llm.get_stats().used_slots == 0
        with pytest.raises(InvalidRequestError, match="may have 128"):
            llm.encode([[1] * 129], use_tqdm=False)
        refused = llm.generate([TEXTS[1]], SamplingParams(max_tokens=2), use_tqdm=False)[0]
        assert "does not generate text" in refused.error


def test_fewer_dimensions_are_the_first_ones(bert):
    folder, oracle = bert
    whole = pooled(oracle, TEXTS[2], "mean", normalize=False)
    with LLM(folder, skip_tokenizer_init=True, **OPTIONS) as llm:
        for activation in (True, False):
            params = PoolingParams(dimensions=5, use_activation=activation)
            (got,) = llm.encode([TEXTS[2]], params, use_tqdm=False)
            want = torch.nn.functional.normalize(whole[:5], dim=0) if activation else whole[:5]
            np.testing.assert_allclose(got.outputs.data, want, atol=1e-4)
        with pytest.raises(InvalidRequestError, match=f"between 1 and {len(whole)}, not 1000") as caught:
            llm.encode([TEXTS[2]], PoolingParams(dimensions=1000), use_tqdm=False)
        assert caught.value.field == "dimensions"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"pooling": "max"}, "pooling"),
        ({"dimensions": 0}, "dimensions"),
        ({"normalize": 1}, "normalize"),
        ({"use_activation": "no"}, "normalize"),
    ],
)
def test_pooling_parameters_name_field_and_range(fields, field):
    with pytest.raises(InvalidRequestError) as caught:
        PoolingParams(**fields)
    assert caught.value.field == field


def test_a_decoder_gives_vectors_by_every_face(tmp_path):
    model = TinyModel("llama", tmp_path)
    prompts, params = [list(PROMPTS[i]) for i in (0, 2, 13)], PoolingParams(pooling="last")
    expected = [pooled(model._oracle.model, prompt, "last", normalize=True).numpy() for prompt in prompts]
    with LLM(model.path, **OPTIONS) as llm:
        local = llm.encode(prompts, params, use_tqdm=False)
    engine = AsyncLLM(model.path, **OPTIONS)

    async def run():
        async def one(prompt):
            (output,) = [output async for output in engine.encode(prompt, params)]
            return output

        with pytest.raises(InvalidRequestError, match="empty"):
            await one([])
        return await asyncio.gather(*map(one, prompts))

    try:
        served = asyncio.run(run())
    finally:
        engine.shutdown()
    for want, *got in zip(expected, local, served, strict=True):
        for one in got:
            np.testing.assert_allclose(one.outputs.data, want, atol=1e-3)
