"""Generations over the prompts of a request as one text completion."""

from collections.abc import AsyncIterable, Sequence

import msgspec
from msgspec import UNSET

from stentor.protocols.common.encoding import encode
from stentor.protocols.ipc.deltas import Delta
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.protocols.openai.completions import CompletionChoice, CompletionLogprobs, CompletionResponse

from ...common.loop_turns import LoopTurns, Slices
from ...generation.completion import Prompt
from ...generation.logprobs import CompletionLists, prompt_logprobs
from ...generation.routed_experts import encoded_experts
from ...http.whole_answer import AnswerBudget, AnswerParts, JsonList, WholeAnswer, array
from ..common.collect import CollectedGeneration, collect
from .stream import CompletionShape, EchoedLogprobs, TokenCounts


class CollectedPrompt:
    """Results of one prompt. The common part of its choices is encoded once."""

    def __init__(self, shape: CompletionShape, prompt: Prompt, budget: AnswerBudget) -> None:
        self._shape = shape
        self._budget = budget
        self._echo = EchoedLogprobs(shape, prompt)
        self._builders = shape.builders(prompt)
        self.prompt = prompt
        self.generation = CollectedGeneration([])
        self.ranked = JsonList(budget)
        """``prompt_logprobs``."""
        self.echoed = CompletionLists(budget)
        self.choices = [CompletionLists(budget) for _ in self._builders]
        """Log-probabilities of each choice, if requested."""

    async def collect(self, batches: AsyncIterable[list[Delta]]) -> None:
        """Raises as :func:`..common.collect` and :meth:`...http.whole_answer.AnswerBudget.add` do."""
        shape = self._shape
        self.generation = await collect(batches, shape.n, token_ids=shape.token_ids, logprobs=self)

    def of_prompt(self, entries: Sequence[TokenLogprobs | None]) -> None:
        if self._builders and self.prompt.echo is not None:
            self.echoed.extend(self._echo.add(entries))
        if self._shape.prompt_logprobs is not None:
            self.ranked.extend(prompt_logprobs(entries, self._shape.names, self._shape.prompt_logprobs))

    def of_choice(self, index: int, tokens: Sequence[int], entries: Sequence[TokenLogprobs]) -> None:
        if self._builders:
            self.choices[index].extend(self._builders[index].add(tokens, entries))


async def completion_answer(
    shape: CompletionShape, collected: Sequence[CollectedPrompt], budget: AnswerBudget, loop_turns: LoopTurns
) -> WholeAnswer:
    """The answer of all prompts, in order. Raises as :meth:`...http.whole_answer.AnswerBudget.add`."""
    tally = TokenCounts(sum(len(one.prompt.tokens) for one in collected))
    parts, slices = AnswerParts(budget), Slices(loop_turns)
    choices = []
    for one in collected:
        prompt, generation = one.prompt, one.generation
        tally.completion += generation.completion_tokens
        tally.cached += generation.cached_tokens
        echo = encode(prompt.echo or "")[1:-1]
        ids = encode(prompt.tokens) if shape.token_ids else b""
        budget.add(len(echo) + len(ids))
        ranked = array(one.ranked)
        for index, choice in enumerate(generation.choices):
            text = encode(choice.text)
            tokens = encode(choice.tokens) if shape.token_ids else b""
            finish = choice.finish
            assert finish is not None
            experts = b"" if shape.experts is None else encoded_experts(finish.routed_experts, shape.experts)
            budget.add(len(text) + len(tokens) + len(experts))
            await slices.did(len(text) + len(tokens) + len(experts))
            choices.append(
                CompletionChoice(
                    index=prompt.index * shape.n + index,
                    text=parts.place([b'"', echo, text[1:]]),
                    logprobs=_logprobs(parts, one, index) if one.choices else None,
                    finish_reason="length" if finish.reason == "length" else "stop",
                    stop_reason=finish.stop_reason,
                    prompt_logprobs=UNSET if shape.prompt_logprobs is None else parts.place(ranked),
                    prompt_token_ids=parts.place([ids]) if shape.token_ids else UNSET,
                    token_ids=parts.place([tokens]) if shape.token_ids else UNSET,
                    routed_experts=parts.place([experts]) if experts else UNSET,
                )
            )
    response = CompletionResponse(
        shape.response_id,
        shape.created,
        shape.model,
        choices,
        tally.usage(),
        system_fingerprint=shape.fingerprint or UNSET,
    )
    if len(collected) == 1:
        clock = collected[0].generation.clock
        response = msgspec.structs.replace(
            response,
            metrics=clock.metrics(tally.completion) if shape.metrics else UNSET,
            timings=clock.timings(tally.prompt, tally.completion) if shape.timings else UNSET,
        )
    return parts.answer(response)


def _logprobs(parts: AnswerParts, one: CollectedPrompt, index: int) -> CompletionLogprobs:
    lists = zip(one.echoed.all, one.choices[index].all, strict=True)
    return CompletionLogprobs(*(parts.place(array(echoed, own)) for echoed, own in lists))
