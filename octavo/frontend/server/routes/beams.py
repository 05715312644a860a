"""`use_beam_search`: n is the width of the beam, and so many choices come, best first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request

from octavo.base.errors import InvalidRequestError
from octavo.frontend.beams import MAX_WIDTH, BeamSearchOutput, BeamSearchParams
from octavo.frontend.server.context import ServerContext
from octavo.frontend.server.disconnect import until_disconnect
from octavo.frontend.server.events import Prompt
from octavo.frontend.server.routes.openai_schema import CommonFields, wanted_form
from octavo.frontend.server.turns import WholeTurn
from octavo.protocol.sampling import SamplingParams

# What a search does not look at; a request that has it would get another answer than it asks for.
_IGNORED: Mapping[str, Callable[[CommonFields], Any]] = {
    "stream": lambda body: body.stream,
    "echo": lambda body: body.echo,
    "prompt_logprobs": lambda body: body.prompt_logprobs is not None,
    "presence_penalty": lambda body: body.presence_penalty,
    "frequency_penalty": lambda body: body.frequency_penalty,
    "repetition_penalty": lambda body: body.repetition_penalty not in (None, 1.0),
    "logit_bias": lambda body: body.logit_bias,
    "allowed_token_ids": lambda body: body.allowed_token_ids,
    "bad_words": lambda body: body.bad_words,
    "structured_outputs": lambda body: wanted_form(body),
    "min_tokens": lambda body: body.min_tokens,
    "truncate_prompt_tokens": lambda body: body.truncate_prompt_tokens,
    "cache_salt": lambda body: body.cache_salt,
    "return_token_ids": lambda body: body.return_token_ids,
}


async def search(
    request: Request,
    context: ServerContext,
    body: CommonFields,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    request_id: str,
) -> tuple[list[WholeTurn], dict[str, Any]]:
    """Return the choices of all prompts, whole, and the usage; raises the request's errors, or ClientGoneError."""
    for name, given in _IGNORED.items():
        if given(body):
            raise InvalidRequestError(f"{name} does not go together with use_beam_search", field=name)
    if params.n > MAX_WIDTH:
        raise InvalidRequestError(f"n must be at most {MAX_WIDTH} with use_beam_search, not {params.n}", field="n")
    asked = BeamSearchParams(
        beam_width=params.n,
        max_tokens=params.max_tokens,
        ignore_eos=params.ignore_eos,
        length_penalty=1.0 if body.length_penalty is None else body.length_penalty,
        stop=params.stop,
        stop_token_ids=params.stop_token_ids,
        include_stop_str_in_output=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
    )
    found: list[BeamSearchOutput] = []

    async def search_all() -> None:
        for prompt in prompts:
            found.append(
                await context.service.beam_search(prompt, asked, request_id=request_id, priority=body.priority or 0)
            )

    await until_disconnect(request.receive, search_all())
    choices = [
        WholeTurn(
            index=prompt_index * params.n + index,
            text=one.output_text,
            token_ids=one.tokens[len(one.tokens) - len(one.logprobs) :],
            logprobs=[dict(entries) for entries in one.logprobs],
            finish_reason=one.finish_reason,
            stop_reason=one.stop_reason,
        )
        for prompt_index, output in enumerate(found)
        for index, one in enumerate(output.sequences)
    ]
    firsts = [output.sequences[0] for output in found]
    num_prompt = sum(len(one.tokens) - len(one.logprobs) for one in firsts)
    num_generated = sum(len(one.logprobs) for output in found for one in output.sequences)
    return choices, {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_generated,
        "total_tokens": num_prompt + num_generated,
    }
