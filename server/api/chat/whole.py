"""A generation as one chat completion."""

from collections.abc import AsyncIterable, Sequence

from msgspec import UNSET

from stentor.protocols.common.encoding import encode
from stentor.protocols.ipc.deltas import Delta
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.protocols.openai.chat import (
    AssistantMessage,
    CalledCustom,
    CalledFunction,
    ChatChoice,
    ChatResponse,
    ChoiceLogprobs,
    CustomToolCall,
    FunctionToolCall,
)
from stentor.protocols.openai.usage import Usage

from ...common.loop_turns import LoopTurns, Slices
from ...generation.logprobs import prompt_logprobs
from ...generation.routed_experts import encoded_experts
from ...http.whole_answer import AnswerBudget, AnswerParts, JsonList, WholeAnswer, array
from ..common.collect import Call, CollectedChoice, Collector
from .shape import ChatShape, call_id


async def chat_answer(
    shape: ChatShape, batches: AsyncIterable[list[Delta]], budget: AnswerBudget, loop_turns: LoopTurns
) -> WholeAnswer:
    """Raises as :class:`ChatCollector`."""
    gathered = ChatCollector(shape, budget)
    async for batch in batches:
        gathered.take(batch)
    return await gathered.answer(loop_turns)


class ChatCollector:
    """Collects a generation, also while it is streamed, as one chat completion."""

    def __init__(self, shape: ChatShape, budget: AnswerBudget) -> None:
        self._shape = shape
        self._budget = budget
        self._written = _Logprobs(shape, budget)
        self._collector = Collector(
            shape.n, thoughts=shape.include_reasoning, token_ids=shape.token_ids, logprobs=self._written
        )

    def take(self, batch: Sequence[Delta]) -> None:
        """Raises as :class:`..common.collect.Collector` and :meth:`...http.whole_answer.AnswerBudget.add` do."""
        self._collector.take(batch)

    async def answer(self, loop_turns: LoopTurns) -> WholeAnswer:
        """Once all has been taken. Raises as :meth:`take`."""
        shape, written = self._shape, self._written
        parts = AnswerParts(self._budget)
        choices, usage = await self.choices(parts, Slices(loop_turns))
        clock = self._collector.end().clock
        response = ChatResponse(
            id=shape.response_id,
            created=shape.created,
            model=shape.model,
            choices=choices,
            usage=usage,
            prompt_logprobs=UNSET if shape.prompt_logprobs is None else parts.place(array(written.prompt)),
            prompt_token_ids=shape.prompt if shape.token_ids else UNSET,
            prompt_text=UNSET if shape.prompt_text is None else shape.prompt_text,
            metrics=clock.metrics(usage.completion_tokens) if shape.metrics else UNSET,
            system_fingerprint=shape.fingerprint or UNSET,
            timings=clock.timings(len(shape.prompt), usage.completion_tokens) if shape.timings else UNSET,
        )
        return parts.answer(response)

    async def choices(self, parts: AnswerParts, slices: Slices, first: int = 0) -> tuple[list[ChatChoice], Usage]:
        """The choices, numbered from ``first`` on, whose long texts are in ``parts``. Once all has been taken. Raises
        as :meth:`take`."""
        shape, budget, written = self._shape, self._budget, self._written
        generation = self._collector.end()
        choices = []
        for index, choice in enumerate(generation.choices):
            message = encode(_message(shape, choice))
            token_ids = encode(choice.tokens) if shape.token_ids else b""
            finish = choice.finish
            assert finish is not None
            experts = b"" if shape.experts is None else encoded_experts(finish.routed_experts, shape.experts)
            budget.add(len(message) + len(token_ids) + len(experts))
            await slices.did(len(message) + len(token_ids) + len(experts))
            called = bool(choice.calls)
            choices.append(
                ChatChoice(
                    index=first + index,
                    message=parts.place([message]),
                    logprobs=ChoiceLogprobs(parts.place(array(written.choices[index]))) if written.choices else None,
                    finish_reason=shape.finish_reason(finish, called, called and choice.calls[-1].ended),
                    stop_reason=finish.stop_reason,
                    token_ids=parts.place([token_ids]) if shape.token_ids else UNSET,
                    routed_experts=parts.place([experts]) if experts else UNSET,
                )
            )
        usage = Usage.of(
            len(shape.prompt),
            generation.completion_tokens,
            generation.cached_tokens,
            generation.reasoning_tokens,
            shape.media_tokens,
        )
        return choices, usage


class _Logprobs:
    def __init__(self, shape: ChatShape, budget: AnswerBudget) -> None:
        self._shape = shape
        self.prompt = JsonList(budget)
        self.choices = [] if shape.top_logprobs is None else [JsonList(budget) for _ in range(shape.n)]
        """Log-probabilities of each choice, if requested."""

    def of_prompt(self, entries: Sequence[TokenLogprobs | None]) -> None:
        self.prompt.extend(prompt_logprobs(entries, self._shape.names, self._shape.prompt_logprobs or 0))

    def of_choice(self, index: int, _tokens: Sequence[int], entries: Sequence[TokenLogprobs]) -> None:
        if self.choices:
            self.choices[index].extend(self._shape.logprobs(entries).content)


def _message(shape: ChatShape, choice: CollectedChoice) -> AssistantMessage:
    text, calls = shape.echo + choice.text, choice.calls
    content = text if text or not calls else None
    reasoning = choice.thoughts or UNSET
    if calls and shape.tools.legacy:
        called = CalledFunction(calls[0].name, calls[0].arguments)
        return AssistantMessage(content, reasoning=reasoning, reasoning_content=reasoning, function_call=called)
    tool_calls = [_call(shape, call) for call in calls] or UNSET
    return AssistantMessage(content, reasoning=reasoning, reasoning_content=reasoning, tool_calls=tool_calls)


def _call(shape: ChatShape, call: Call) -> FunctionToolCall | CustomToolCall:
    if call.name in shape.tools.custom:
        return CustomToolCall(call_id(call.id), CalledCustom(call.name, call.arguments))
    return FunctionToolCall(call_id(call.id), CalledFunction(call.name, call.arguments))
