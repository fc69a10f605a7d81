"""What one request was sent by an engine over :mod:`.fake_worker`, and whether that is what it gives alone."""

from dataclasses import dataclass, field

import msgspec

from stentor.engine.channel.pieces import PromptParts
from stentor.engine.client.media import Media
from stentor.protocols.ipc.actors import Finished, PromptDone, PromptPart, Resumed, SequenceTokens, Submit
from stentor.protocols.ipc.inputs import StreamShape
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.tests.engine.fake_model import alignment_of, alone, media_bytes, pooled_of, token_logprobs
from stentor.tests.engine.media import Audio, Heard
from stentor.tests.engine.scripted_grammar import ScriptedGrammar, permitted


@dataclass
class Client:
    """Of one request; raises AssertionError on a message that may not come."""

    submit: Submit
    grammar: ScriptedGrammar | None = None
    audio: Audio | None = None
    streamed: Heard | None = None
    """All that was streamed so far."""
    media: list[Media] = field(default_factory=list)
    """What stands in the prompt."""
    parts: PromptParts = field(default_factory=PromptParts)
    prompts: list[PromptDone] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    finished: dict[int, Finished] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)

    @property
    def heard(self) -> bytes:
        """What tokens depend on besides those before them."""
        return media_bytes(self.media) if self.audio is None else self.audio.pcm

    def take_part(self, part: PromptPart) -> None:
        assert not self.prompts, "a part of a prompt that is done"
        self.parts.add(part)

    def take_prompt(self, prompt: PromptDone) -> None:
        assert not self.tokens, "PromptDone after the first token"
        assert not prompt.logprobs, "log-probabilities that did not come in parts"
        self.prompts.append(self.parts.joined(prompt))
        assert len(self.prompts) == 1, "PromptDone twice"

    def take_tokens(self, gained: SequenceTokens) -> None:
        before = self.tokens.setdefault(gained.index, [])
        if self.grammar is not None:
            for count, token in enumerate(gained.tokens):
                permitted_now = permitted(self.grammar, self.submit.params, before + gained.tokens[:count])
                assert token in permitted_now, "a token that is not allowed"
        assert gained.index not in self.finished, "tokens after the end"
        assert self.prompts, "tokens before PromptDone"
        assert gained.tokens
        assert (gained.logprobs is not None) == (self.submit.params.logprobs is not None)
        before.extend(gained.tokens)
        self.logprobs.setdefault(gained.index, []).extend(gained.logprobs or [])

    def take_end(self, end: Finished) -> None:
        assert end.index not in self.finished, f"sequence {end.rid}.{end.index} finished twice"
        self.finished[end.index] = end

    def again(self) -> Submit | None:
        """What is submitted to an engine that follows one that was lost; None where nothing of it lives."""
        sequences = range(len(self.submit.seeds))
        if len(self.finished) == len(sequences):
            return None
        outputs = [list(self.tokens.get(index, [])) for index in sequences]
        resumed = Resumed(outputs, list(self.finished), bool(self.prompts))
        return msgspec.structs.replace(self.submit, resumed=resumed)

    def check(self, max_model_len: int, shape: StreamShape | None, *, blamed: bool) -> None:
        """Every sequence ended once, with the tokens that it gives alone; ``blamed`` may have ended before."""
        submit = self.submit
        assert set(self.finished) == set(range(len(submit.seeds))), f"request {submit.rid} lacks terminal messages"
        for index, finished in self.finished.items():
            got = self.tokens.get(index, [])
            expected = alone(submit, index, max_model_len, self.grammar, shape, self.streamed, self.heard)
            if submit.params.logprobs is not None:
                whole, start = [*submit.prompt, *got], len(submit.prompt)
                assert self.logprobs.get(index, []) == [token_logprobs(whole, i) for i in range(start, len(whole))]
            if finished.reason == "error":
                assert finished.message
                assert got == expected.tokens[: len(got)] if blamed else not got, finished
            elif finished.reason == "abort":
                assert index in self.aborted, f"sequence {submit.rid}.{index} was aborted by nobody"
                assert got == expected.tokens[: len(got)]
            else:
                assert got == expected.tokens, f"sequence {submit.rid}.{index} gave other tokens than alone"
                assert (finished.reason, finished.stop_token) == (expected.reason, expected.stop_token)
                self._check_prompt()

    def _check_prompt(self) -> None:
        submit = self.submit
        (prompt,) = self.prompts
        if (pooling := submit.pooling) is not None:
            assert prompt.pooled == pooled_of(submit.prompt, pooling)
            assert pooling.last or prompt.cached_tokens == 0
        if (audio := self.audio) is not None:
            probe = audio.probe
            assert prompt.alignment == (None if probe is None else alignment_of(submit.prompt, audio.pcm, probe))
            assert audio.align is None or prompt.cached_tokens == 0
        if submit.params.prompt_logprobs is not None:
            rest = [token_logprobs(submit.prompt, i) for i in range(1, len(submit.prompt))]
            assert prompt.logprobs == [None, *rest]
            assert prompt.cached_tokens == 0
        else:
            assert prompt.logprobs is None
