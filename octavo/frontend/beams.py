"""Beam search, over an engine that is asked for one token at a time: the prefix cache makes the beams share their past.

In every step the likeliest continuations of all beams together stay, as many as the width. One that ends, and is among the
likeliest `beam_width`, is put aside. At the end the best of all by score come out: the sum of log-probabilities over
(number of generated tokens, the one that ends it included) ** length_penalty; so does `transformers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from octavo.base.errors import GenerationError, UnsupportedError
from octavo.base.naming import checked_names
from octavo.frontend.intake import Intake, Prompt
from octavo.protocol.output import Logprob, RequestOutput
from octavo.protocol.request import Request
from octavo.protocol.sampling import NumberRange, SamplingParams

MAX_WIDTH = 256
_WIDTH = NumberRange(low=1, high=MAX_WIDTH, whole=True)
_LENGTH_PENALTY = NumberRange(low=-10.0, high=10.0)
_REFUSED = {
    "structured_outputs": "beams have no grammars",
    "watermarking": "texts are not watermarked",
}


@checked_names("beam search parameter", _REFUSED)
@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """Parameters of a beam search; out-of-range values raise InvalidRequestError naming the field.

    beam_width: beams kept, and sequences returned. max_tokens, ignore_eos, stop, include_stop_str_in_output,
    skip_special_tokens: as in SamplingParams. temperature: taken and without effect, the likeliest are looked for.
    length_penalty: above 0 favours long sequences, below 0 short ones.
    """

    beam_width: int
    max_tokens: int | None
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        _WIDTH.check("beam_width", self.beam_width)
        _LENGTH_PENALTY.check("length_penalty", self.length_penalty)
        _ = self.sampling

    @property
    def sampling(self) -> SamplingParams:
        """What a prompt is checked against, and what ends a beam."""
        return SamplingParams(
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            include_stop_str_in_output=self.include_stop_str_in_output,
            skip_special_tokens=self.skip_special_tokens,
        )

    def one_token(self, vocab_size: int) -> SamplingParams:
        """What a beam asks the engine for: the log-probabilities of its likeliest continuations."""
        width = min(2 * self.beam_width, vocab_size)
        return SamplingParams(temperature=0.0, max_tokens=1, logprobs=width, ignore_eos=True, detokenize=False)


@dataclass(slots=True, kw_only=True)
class BeamSearchSequence:
    """One sequence. tokens: prompt and output. text: of both; output_text: of the output. cum_logprob: of the output's tokens.

    logprobs: of each output token and its rivals.
    """

    tokens: list[int]
    logprobs: list[Mapping[int, Logprob]] = field(default_factory=list[Mapping[int, Logprob]])
    cum_logprob: float = 0.0
    text: str | None = None
    output_text: str = ""
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: int | str | None = None
    score: float = 0.0


@dataclass(slots=True, kw_only=True)
class BeamSearchOutput:
    """The best sequences of one prompt, best first."""

    sequences: list[BeamSearchSequence]


class BeamSearch:
    """The search for one prompt: ask the engine to continue `prompts`, hand what it says to `extend`, until `finished`.

    one_token: the parameters to ask it with.
    """

    def __init__(self, request: Request, params: BeamSearchParams, intake: Intake) -> None:
        self.one_token = params.one_token(intake.facts.vocab_size)
        self._params = params
        self._tokenizer = intake.tokenizer
        self._num_prompt = len(request.tokens)
        self._max_tokens = request.max_tokens
        self._stop_ids = frozenset(request.stop_ids)
        self._live = [BeamSearchSequence(tokens=request.tokens.tolist())]
        self._ended: list[BeamSearchSequence] = []
        self._length = 0

    @staticmethod
    def start(intake: Intake, prompt: Prompt, params: BeamSearchParams) -> BeamSearch:
        """Tokenize and check a prompt. Raises InvalidRequestError naming the field."""
        if not intake.reports_logprobs:
            raise UnsupportedError(
                "a beam search needs log-probabilities: logprobs_mode reports logits here", field="use_beam_search"
            )
        request, _ = intake.request(prompt, params.sampling, key=0)
        return BeamSearch(request, params, intake)

    @property
    def prompts(self) -> list[list[int]]:
        """The token ids of every beam that goes on."""
        return [beam.tokens for beam in self._live]

    @property
    def finished(self) -> bool:
        """Whether no beam goes on."""
        return not self._live

    def extend(self, logprobs: Sequence[Mapping[int, Logprob]]) -> None:
        """Take the likeliest continuations of every beam, in the order of `prompts`."""
        self._length += 1
        width = self._params.beam_width
        candidates = [
            (beam.cum_logprob + one.logprob, index, token)
            for index, (beam, entries) in enumerate(zip(self._live, logprobs, strict=True))
            for token, one in entries.items()
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        live: list[BeamSearchSequence] = []
        for rank, (total, index, token) in enumerate(candidates[: 2 * width]):
            sequence = self._grown(self._live[index], token, total, logprobs[index])
            if sequence.finish_reason is not None:
                self._ended += [sequence] if rank < width else []
            elif len(live) < width:
                live.append(sequence)
        self._live = live
        if self._length >= self._max_tokens:
            for beam in live:
                beam.finish_reason = "length"
            self._ended += live
            self._live = []
        elif self._settled():
            self._live = []

    def output(self) -> BeamSearchOutput:
        """Return the best sequences, best first; the search is finished."""
        best = sorted(self._ended, key=lambda sequence: -sequence.score)[: self._params.beam_width]
        for sequence in best:
            sequence.text = self._decode(sequence.tokens)
            if not isinstance(sequence.stop_reason, str):
                sequence.output_text = self._decode(sequence.tokens[self._num_prompt :])
        return BeamSearchOutput(sequences=best)

    def _grown(
        self, beam: BeamSearchSequence, token: int, total: float, entries: Mapping[int, Logprob]
    ) -> BeamSearchSequence:
        params = self._params
        grown = BeamSearchSequence(
            tokens=[*beam.tokens, token],
            logprobs=[*beam.logprobs, entries],
            cum_logprob=total,
            score=total / self._length**params.length_penalty,
        )
        if token in self._stop_ids:
            grown.finish_reason = "stop"
            grown.stop_reason = token if token in params.stop_token_ids else None
            if not params.include_stop_str_in_output:
                del grown.tokens[-1]
                del grown.logprobs[-1]
        elif params.stop:
            self._look_for_stops(grown)
        return grown

    def _look_for_stops(self, grown: BeamSearchSequence) -> None:
        text = self._decode(grown.tokens[self._num_prompt :])
        ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._params.sampling.stop if stop in text]
        if ends:
            end, _, stop = min(ends)
            grown.finish_reason, grown.stop_reason = "stop", stop
            grown.output_text = text[: end if self._params.include_stop_str_in_output else end - len(stop)]

    def _settled(self) -> bool:
        """Whether no beam can still come before the best that have ended: log-probabilities only fall."""
        width, penalty = self._params.beam_width, self._params.length_penalty
        if len(self._ended) < width:
            return False
        worst = sorted((sequence.score for sequence in self._ended), reverse=True)[width - 1]
        longest = self._max_tokens if penalty > 0 else self._length + 1
        return all(beam.cum_logprob / longest**penalty <= worst for beam in self._live)

    def _decode(self, tokens: list[int]) -> str:
        if self._tokenizer is None:
            return ""
        return self._tokenizer.decode(tokens, skip_special_tokens=self._params.skip_special_tokens)


def next_logprobs(output: RequestOutput) -> Mapping[int, Logprob]:
    """Return what the engine says of the token behind a beam; raises GenerationError if it could not."""
    (choice,) = output.outputs
    if not choice.logprobs:
        raise GenerationError(output.error or "generation was aborted")
    return choice.logprobs[0]
