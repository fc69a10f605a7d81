"""Whatever a client sends, in whatever order: no crash, never two open responses, items always in one order."""

import asyncio
import base64
import random
from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stentor.server.http.error_responses import INTERNAL
from stentor.server.parsing.output import TOOL_FORMATS, OutputFormat
from stentor.tests.examples import examples
from stentor.tests.fakes import FakeEngine, says
from stentor.tests.server.realtime.session_fakes import Running, voice_state
from stentor.tests.server.realtime.wire import Ledger

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>'
ANSWERS = [
    "Yes. It is so. And more of it.",
    CALL,
    f"Let me see. {CALL}{CALL}",
    "",
    "What is unspeakable. Not this.",
    "Hm",
]
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]

SESSIONS: list[Any] = [
    {"instructions": "Be brief."},
    {"instructions": None},
    {"output_modalities": ["text"]},
    {"output_modalities": ["audio"]},
    {"output_modalities": ["audio", "text"]},
    {"tools": TOOLS, "tool_choice": "auto"},
    {"tools": []},
    {"tools": [{"type": "mcp", "server_label": "x"}]},
    {"tool_choice": {"type": "function", "name": "nobody"}, "tools": TOOLS},
    {"tool_choice": "none"},
    {"max_output_tokens": 3},
    {"max_output_tokens": "inf"},
    {"max_output_tokens": 0},
    {"truncation": {"type": "retention_ratio", "retention_ratio": 0.5}},
    {"truncation": "disabled"},
    {"audio": {"input": {"turn_detection": None}}},
    {"audio": {"input": {"turn_detection": {"type": "server_vad", "interrupt_response": False}}}},
    {"audio": {"input": {"turn_detection": {"type": "server_vad", "create_response": False}}}},
    {"audio": {"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "high"}}}},
    {"audio": {"input": {"transcription": {"model": "fake-whisper", "language": "en"}}}},
    {"audio": {"input": {"transcription": None, "noise_reduction": {"type": "near_field"}}}},
    {"audio": {"output": {"voice": "ann", "speed": 1.5}}},
    {"audio": {"output": {"format": {"type": "audio/pcmu"}}}},
    {"audio": {"output": {"voice": "nobody"}}},
    {"model": "another"},
    {"nonsense": 1},
    None,
    "text",
]
RESPONSES: list[Any] = [
    None,
    {},
    {"output_modalities": ["text"], "instructions": "Once.", "metadata": {"a": "b"}},
    {"conversation": "none"},
    {"conversation": "none", "input": [], "output_modalities": ["text"]},
    {
        "conversation": "none",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "?"}]}],
    },
    {"input": [{"type": "item_reference", "id": "nowhere"}]},
    {"max_output_tokens": 2, "tools": TOOLS},
    {"conversation": "another"},
    {"tools": [{"type": "function", "name": "no name"}]},
    {"audio": {"output": {"voice": "ann"}}},
    {"temperature": 3},
    7,
]
GARBAGE = [
    "",
    "no json",
    "[]",
    "{}",
    '{"type": "response.done"}',
    '{"type": 7, "event_id": "mine"}',
    '{"type": "conversation.item.create", "event_id": "mine"}',
    '{"type": "conversation.item.create", "item": {"type": "message", "role": "bishop", "content": []}}',
    '{"type": "input_audio_buffer.append", "audio": "!"}',
    '{"type": "session.update", "model": "fake"}',
    '{"type": "conversation.item.truncate", "item_id": "x", "content_index": -1, "audio_end_ms": 0}',
    '{"type": "transcription_session.update", "session": {}}',
]


def heard(sound: str) -> str:
    return base64.b64encode(sound.encode()).decode()


class AnySession(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.ledger = Ledger()
        self.known: list[str] = ["root", "nowhere"]
        self.responses: list[str | None] = [None, "resp_nowhere"]
        self.read = 0

    @initialize(
        transcribes=st.sampled_from([False, False, True]),
        speaks=st.booleans(),
        calls=st.booleans(),
        context=st.sampled_from([700, 8192]),
        seed=st.integers(0, 1 << 16),
    )
    def begin(self, transcribes: bool, speaks: bool, calls: bool, context: int, seed: int) -> None:
        chance = random.Random(seed)

        def answer(prompt: list[int], index: int) -> Sequence[int]:
            return says(chance.choice(ANSWERS))(prompt, index)

        self.engine = FakeEngine(answer=answer, max_model_len=context)
        self.engine.burst = 7

        async def start() -> Running:
            # the events and locks of the state belong to this loop
            output = OutputFormat(tools=TOOL_FORMATS["hermes"])
            state = voice_state(self.engine, speaks=speaks, output=output)
            kind = (lambda rules: rules.transcription("sess_1", 1)) if transcribes else None
            running = Running(state, kind)
            running.start()
            await running.settle()
            return running

        self.running = self.loop.run_until_complete(start())
        self._check()
        if calls:
            self._say(type="session.update", session={"type": "realtime", "tools": TOOLS})

    def _say(self, **event: Any) -> None:
        self.running.say(**event)
        self._go_on()

    def _go_on(self, turns: int = 6) -> None:
        self.loop.run_until_complete(self.running.settle(turns))
        self._check()

    def _check(self) -> None:
        for event in self.running.sent[self.read :]:
            self.ledger.take(event)
            assert event["type"] != "error" or event["error"]["message"] != INTERNAL
            assert event["type"] != "response.done" or INTERNAL not in str(event["response"]["status_details"])
            if event["type"] == "conversation.item.added":
                self.known.append(event["item"]["id"])
            elif event["type"] == "response.created":
                self.responses.append(event["response"]["id"])
        self.read = len(self.running.sent)

    def teardown(self) -> None:
        if hasattr(self, "running"):
            self.engine.gate.set()
            if self.running.input_audio is not None:
                self.running.input_audio.gate.set()
            self.loop.run_until_complete(self.running.end())
            self._check()
            assert not self.ledger.open, "a response has not ended with its connection"
            assert self.running.state.admission.live_requests == 0
        self.loop.close()

    # ---- what clients do

    @rule(session=st.sampled_from(SESSIONS), kind=st.sampled_from(["realtime", "realtime", "transcription", None]))
    def update(self, session: Any, kind: str | None) -> None:
        if isinstance(session, dict) and kind is not None:
            session = {"type": kind, **session}
        self._say(type="session.update", session=session)

    @rule(
        data=st.data(), role=st.sampled_from(["user", "system", "assistant"]), said=st.sampled_from(["", "Hi.", "So?"])
    )
    def add_message(self, data: st.DataObject, role: str, said: str) -> None:
        kind = "output_text" if role == "assistant" else "input_text"
        item = {"type": "message", "role": role, "content": [{"type": kind, "text": said}]}
        if data.draw(st.booleans()):
            item["id"] = data.draw(st.sampled_from(["mine", "yours", self.known[-1]]))
        self._say(type="conversation.item.create", item=item, previous_item_id=self._some(data))

    @rule(data=st.data(), said=st.sampled_from(["", "spoken words"]))
    def add_audio(self, data: st.DataObject, said: str) -> None:
        item = {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": heard(said)}]}
        self._say(type="conversation.item.create", item=item, previous_item_id=self._some(data))

    @rule(call=st.sampled_from(["call_1", "call_2"]), output=st.booleans())
    def add_call(self, call: str, output: bool) -> None:
        item = {"type": "function_call_output", "call_id": call, "output": "3"}
        if not output:
            item = {"type": "function_call", "call_id": call, "name": "look", "arguments": "{}"}
        self._say(type="conversation.item.create", item=item)

    @rule(data=st.data(), kind=st.sampled_from(["retrieve", "delete"]))
    def touch(self, data: st.DataObject, kind: str) -> None:
        self._say(type=f"conversation.item.{kind}", item_id=data.draw(st.sampled_from(self.known)))

    @rule(data=st.data(), ms=st.sampled_from([0, 1, 400, 700, 99_999]))
    def truncate(self, data: st.DataObject, ms: int) -> None:
        id = data.draw(st.sampled_from(self.known))
        self._say(type="conversation.item.truncate", item_id=id, content_index=0, audio_end_ms=ms)

    @rule(response=st.sampled_from(RESPONSES))
    def respond(self, response: Any) -> None:
        self._say(type="response.create", response=response)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self._say(type="response.cancel", response_id=data.draw(st.sampled_from(self.responses)))

    @rule(sound=st.text("<>~ab", max_size=6))
    def append(self, sound: str) -> None:
        self._say(type="input_audio_buffer.append", audio=heard(sound))

    @rule(kind=st.sampled_from(["input_audio_buffer.commit", "input_audio_buffer.clear", "output_audio_buffer.clear"]))
    def handle_audio(self, kind: str) -> None:
        self._say(type=kind)

    @rule(message=st.sampled_from(GARBAGE))
    def garbage(self, message: str) -> None:
        self.running.inbox.put_nowait(message.encode())
        self._go_on()
        assert self.ledger.kinds[-1:] == ["error"] or self.ledger.kinds.count("error")

    # ---- what happens meanwhile

    @rule(turns=st.integers(1, 60))
    def wait(self, turns: int) -> None:
        self._go_on(turns)

    @rule()
    def hold_the_engine(self) -> None:
        if self.engine.gate.is_set():
            self.engine.gate.clear()
        else:
            self.engine.gate.set()

    @precondition(lambda self: self.running.input_audio is not None)
    @rule(fails=st.booleans())
    def hold_the_ears(self, fails: bool) -> None:
        input_audio = self.running.input_audio
        assert input_audio is not None
        input_audio.fails = fails
        if input_audio.gate.is_set():
            input_audio.gate.clear()
        else:
            input_audio.gate.set()

    # ---- what always holds

    @invariant()
    def items_have_one_order(self) -> None:
        if hasattr(self, "running"):
            assert self.ledger.order == [entry.item.id for entry in self.running.connection.conversation]

    @invariant()
    def the_state_is_that_of_the_events(self) -> None:
        if hasattr(self, "running"):
            responding = self.running.connection.state.value in ("responding", "overlapping")
            assert responding == bool(self.ledger.responding)

    def _some(self, data: st.DataObject) -> str | None:
        return data.draw(st.sampled_from([None, *self.known]))


def test_no_sequence_of_events_breaks_a_session() -> None:
    long = settings(max_examples=examples(30, 2000), stateful_step_count=30, deadline=None)
    run_state_machine_as_test(AnySession, settings=long)
