"""From a user's prompt and sampling parameters to a checked protocol `Request`.

Everything a request can get wrong is found here, before the engine sees it; prompts are never cut silently.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NotRequired, TypedDict, cast

import numpy as np

from octavo.base.errors import ConfigError, InvalidRequestError, UnsupportedError
from octavo.base.facts import ModelFacts
from octavo.base.naming import unknown_name
from octavo.base.unicode import check_unicode
from octavo.constrain.grammar import checked, form_of, own_grammar, whole
from octavo.frontend.text.chat import ChatTemplate, Message
from octavo.frontend.text.tokenizer import Tokenizer
from octavo.protocol.arrays import Int32Array, plain
from octavo.protocol.pooling import PoolingParams
from octavo.protocol.request import Request
from octavo.protocol.sampling import SamplingParams


class TextPrompt(TypedDict):
    """A prompt as text, the way scripts write it: `TextPrompt(prompt="...")`."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids."""

    prompt_token_ids: Sequence[int]
    cache_salt: NotRequired[str]


# A text, token ids, or a record with one of them.
Prompt = str | Sequence[int] | Mapping[str, Any] | TextPrompt | TokensPrompt

_PROMPT_KEYS = ("prompt", "prompt_token_ids", "cache_salt")
_LATER_KEYS = ("multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs", "prompt_embeds", "encoder_prompt")
_INT63 = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """What requests are checked against. tokenizer: None takes token ids only.

    max_model_len: prompt and output tokens together. template: of chats, None where there is no tokenizer. max_logprobs:
    alternatives per token that may be asked for; None is no limit but the vocabulary. sampling: what takes the place of
    SamplingParams' own defaults. reports_logprobs: and not logits in their place. takes_functions: whether requests reach the
    worker as they are, functions and all.
    """

    facts: ModelFacts
    max_model_len: int
    tokenizer: Tokenizer | None = None
    template: ChatTemplate | None = None
    max_logprobs: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    reports_logprobs: bool = True
    takes_functions: bool = False

    def request(
        self, prompt: Prompt, params: SamplingParams, *, key: int, priority: int = 0, cache_salt: str = ""
    ) -> tuple[Request, str | None]:
        """Return the request and the prompt's text, if it came as text. Raises InvalidRequestError naming the field.

        max_tokens acts as an upper limit: it is lowered to the room that the prompt leaves in the context. A request
        without a seed gets one of its own from the operating system.
        """
        text, ids, salt = self._read_prompt(prompt)
        self._check_params(params)
        ids = self._truncated(_listed(ids), params)
        room = self._room(len(ids))
        tokens = self._checked_ids(ids)
        return Request(
            key=key,
            tokens=tokens,
            grammar=self._grammar(params),
            # The grammar says it, and the schema may be long.
            sampling=params if params.structured_outputs is None else replace(params, structured_outputs=None),
            stop_ids=self._stop_ids(params),
            bad_tokens=self._bad_tokens(params),
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            seed=int.from_bytes(os.urandom(8)) & _INT63 if params.seed is None else params.seed,
            priority=_checked_priority(priority),
            arrival=time.time(),
            cache_salt=_checked_salt(cache_salt or salt),
        ), text

    def pooling_request(
        self, prompt: Prompt, params: PoolingParams, *, key: int, priority: int = 0
    ) -> tuple[Request, str | None]:
        """Return a request for a vector, and the prompt's text, if it came as text. Raises InvalidRequestError."""
        if not isinstance(params, PoolingParams):
            raise InvalidRequestError(f"expected PoolingParams, not {type(params).__name__}", field="pooling_params")
        if params.dimensions is not None and params.dimensions > self.facts.hidden_size:
            raise InvalidRequestError(
                f"dimensions must be between 1 and {self.facts.hidden_size}, not {params.dimensions}",
                field="dimensions",
            )
        text, ids, salt = self._read_prompt(prompt)
        ids = _listed(ids)
        if len(ids) > self.max_model_len:
            raise InvalidRequestError(
                f"the prompt has {len(ids)} tokens, but may have {self.max_model_len} (max_model_len)", field="prompt"
            )
        tokens = self._checked_ids(ids)
        return Request(
            key=key,
            tokens=tokens,
            sampling=SamplingParams(max_tokens=None),
            stop_ids=(),
            max_tokens=0,
            seed=0,
            priority=_checked_priority(priority),
            arrival=time.time(),
            cache_salt=_checked_salt(salt),
            pooling=params,
        ), text

    def chat(
        self,
        messages: Sequence[Message],
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Render a conversation with the model's template, or with `chat_template`, and return its token ids.

        The template writes special tokens itself, so none is added. Raises InvalidRequestError.
        """
        template = self.template
        if self.tokenizer is None or template is None:
            raise InvalidRequestError("there is no tokenizer: chats cannot be rendered", field="messages")
        if chat_template is not None:
            try:
                template = template.instead(chat_template)
            except ConfigError as error:
                raise InvalidRequestError(error.message, field="chat_template") from error
        variables = {**(template_kwargs or {}), **({"tools": list(tools)} if tools else {})}
        text = template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
        )
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _read_prompt(self, prompt: Any) -> tuple[str | None, Any, Any]:
        """Return the prompt's text, its token ids and its cache salt."""
        if isinstance(prompt, str):
            return prompt, self._encode(prompt), ""
        if not isinstance(prompt, Mapping):
            return None, prompt, ""
        for name in prompt:
            if name in _LATER_KEYS:
                raise UnsupportedError(f"this model takes text and token ids only, not {name!r}", field=str(name))
            if name not in _PROMPT_KEYS:
                raise InvalidRequestError(unknown_name("prompt field", str(name), _PROMPT_KEYS), field=str(name))
        text, ids, salt = prompt.get("prompt"), prompt.get("prompt_token_ids"), prompt.get("cache_salt")
        if text is not None and not isinstance(text, str):
            raise InvalidRequestError(f"prompt must be a string, not {type(text).__name__}", field="prompt")
        if text is None and ids is None:
            raise InvalidRequestError("a prompt needs 'prompt' or 'prompt_token_ids'", field="prompt")
        return text, self._encode(text) if ids is None and text is not None else ids, salt

    def _encode(self, text: str) -> list[int]:
        if self.tokenizer is None:
            raise InvalidRequestError("there is no tokenizer: give prompt_token_ids, not text", field="prompt")
        return self.tokenizer.encode(text, add_special_tokens=True)

    def _checked_ids(self, ids: Sequence[Any]) -> Int32Array:
        if not all(kind is int or issubclass(kind, np.integer) for kind in set(map(type, ids))):
            raise _no_prompt()
        for token in (min(ids), max(ids)):
            if not 0 <= token < self.facts.vocab_size:
                raise InvalidRequestError(
                    f"token id {token} is not in the vocabulary, 0 to {self.facts.vocab_size - 1}", field="prompt"
                )
        return np.array(ids, dtype=np.int32)

    def _room(self, num_prompt: int) -> int:
        """Return how many tokens the output may have. Asked before anybody looks at every token of a prompt."""
        room = self.max_model_len - num_prompt
        if room < 1:
            raise InvalidRequestError(
                f"the prompt has {num_prompt} tokens, and may have {self.max_model_len - 1}: prompt and output together "
                f"may have {self.max_model_len} (max_model_len), and the output needs at least one",
                field="prompt",
            )
        return room

    def _check_params(self, params: Any) -> None:
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(f"expected SamplingParams, not {type(params).__name__}", field="sampling_params")
        if self.tokenizer is None and params.stop:
            raise InvalidRequestError("stop strings need a tokenizer; use stop_token_ids", field="stop")
        if self.tokenizer is None and params.bad_words:
            raise InvalidRequestError("bad_words need a tokenizer; use logit_bias", field="bad_words")
        if params.logits_processors and not self.takes_functions:
            raise UnsupportedError(
                "logits_processors of a request work with LLM on one rank only: functions do not cross processes; name a "
                "class by the engine's option logits_processors instead",
                field="logits_processors",
            )
        vocab = self.facts.vocab_size
        named = {
            "stop_token_ids": params.stop_token_ids,
            "allowed_token_ids": params.allowed_token_ids,
            "logit_bias": params.logit_bias,
            "logprob_token_ids": params.logprob_token_ids,
            "trace_decode_token_ids": params.trace_decode_token_ids,
        }
        for name, ids in named.items():
            highest = max(ids or (0,))
            if highest >= vocab:
                raise InvalidRequestError(f"{name}: {highest} is not in the vocabulary, 0 to {vocab - 1}", field=name)
        limit = vocab if self.max_logprobs is None else min(self.max_logprobs, vocab)
        for name, asked in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
            if asked is not None and (vocab if asked == -1 else asked) > limit:
                raise InvalidRequestError(f"{name} must be at most {limit}, not {asked}", field=name)

    def _grammar(self, params: SamplingParams) -> str:
        form = params.structured_outputs
        if params.thinking_token_budget is not None:
            name = "thinking_token_budget"
            raise UnsupportedError(f"{name} is for chats with a server only", field=name)
        if form is None:
            return ""
        if self.tokenizer is None:
            raise InvalidRequestError("structured_outputs need a tokenizer", field="structured_outputs")
        return checked(own_grammar(form.lark) if form.lark else whole(form_of(form)))

    def _truncated(self, ids: Sequence[Any], params: SamplingParams) -> Sequence[Any]:
        keep = params.truncate_prompt_tokens
        if keep == -1:
            keep = max(1, self.max_model_len - (params.max_tokens or 1))
        return ids if keep is None else ids[-keep:]

    def _bad_tokens(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """Return the ways to write the bad words: at the beginning of a text, and behind a space."""
        tokenizer = self.tokenizer
        if tokenizer is None or not params.bad_words:
            return ()
        spelled = [form for word in params.bad_words for form in (word.lstrip() or word, f" {word.lstrip()}")]
        ways = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in spelled]
        return tuple(dict.fromkeys(way for way in ways if way))

    def _stop_ids(self, params: SamplingParams) -> tuple[int, ...]:
        own = self.facts.eos_token_ids
        if self.tokenizer is not None and self.tokenizer.eos_token_id is not None:
            # Configurations disagree with tokenizers now and then; a model ends on what either calls its end.
            own = (*own, self.tokenizer.eos_token_id)
        own = () if params.ignore_eos else own
        return tuple(dict.fromkeys((*own, *params.stop_token_ids, *self._special_stops(params))))

    def _special_stops(self, params: SamplingParams) -> list[int]:
        """Return ids of special tokens that are stop strings: when their text is skipped, no text can match them."""
        tokenizer = self.tokenizer
        if tokenizer is None or not params.skip_special_tokens:
            return []
        ids = [tokenizer.token_id(stop) for stop in params.stop]
        return [index for index in ids if index is not None and tokenizer.is_special(index)]


def _checked_salt(salt: Any) -> str:
    if not isinstance(salt or "", str):
        raise InvalidRequestError(f"cache_salt must be a string, not {salt!r}", field="cache_salt")
    check_unicode(salt or "", "cache_salt")
    return salt or ""


def _checked_priority(priority: Any) -> int:
    priority = plain(priority)
    if type(priority) is not int or abs(priority) > 2**31 - 1:
        raise InvalidRequestError(f"priority must be a whole number of 32 bits, not {priority!r}", field="priority")
    return priority


def _listed(ids: Any) -> Sequence[Any]:
    """Return what must be token ids as a list or tuple, not empty."""
    ids = ids.tolist() if isinstance(ids, np.ndarray) else ids
    if not isinstance(ids, (list, tuple)):
        raise _no_prompt()
    if not ids:
        raise InvalidRequestError("the prompt is empty: it needs at least one token", field="prompt")
    return cast("Sequence[Any]", ids)


def _no_prompt() -> InvalidRequestError:
    return InvalidRequestError(
        "a prompt must be a text, a list of token ids, or a record with 'prompt' or 'prompt_token_ids'", field="prompt"
    )
