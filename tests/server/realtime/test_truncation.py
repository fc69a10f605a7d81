"""Answers of which less was heard than was made."""

import pytest

from stentor.tests.server.realtime.audio_session import session
from stentor.tests.server.realtime.session_fakes import SECONDS_A_SENTENCE
from stentor.tests.server.realtime.test_text_sessions import engine_of, prompt_of, user

pytestmark = pytest.mark.anyio


async def test_a_truncated_answer_is_remembered_as_far_as_it_was_heard() -> None:
    async with session() as running:
        running.say(type="response.create")
        item = (await running.until("response.done"))["response"]["output"][0]["id"]
        too_far = int(SECONDS_A_SENTENCE * 2000) + 50
        running.say(type="conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=too_far)
        assert (await running.until("error"))["error"]["param"] == "audio_end_ms"
        cut = int(SECONDS_A_SENTENCE * 1000) + 1
        running.say(type="conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=cut)
        event = await running.until("conversation.item.truncated")
        assert event["audio_end_ms"] == cut
        running.say(type="conversation.item.retrieve", item_id=item)
        part = (await running.until("conversation.item.retrieved"))["item"]["content"][0]
        assert part["transcript"].strip() == "This is the first sentence."
        running.say(type="conversation.item.create", item=user("Go on."))
        running.say(type="response.create")
        await running.until("response.done")
        prompt = prompt_of(engine_of(running))
        assert "first sentence." in prompt
        assert "second" not in prompt


async def test_truncating_an_answer_that_is_still_being_made_cancels_it() -> None:
    async with session(" ".join(f"This is sentence number {number} of many." for number in range(40))) as running:
        running.say(type="response.create")
        item = (await running.until("response.output_audio.delta"))["item_id"]
        running.say(type="conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=100)
        done = (await running.until("response.done"))["response"]
        assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "client_cancelled")
        assert (await running.until("conversation.item.truncated"))["audio_end_ms"] == 100
        running.say(type="conversation.item.retrieve", item_id=item)
        part = (await running.until("conversation.item.retrieved"))["item"]["content"][0]
        assert "This is sentence".startswith(part["transcript"].strip())
        running.say(type="response.create")
        await running.until("response.done")
        assert "number" not in prompt_of(engine_of(running))


async def test_an_open_answer_is_truncated_no_later_than_what_was_sent_of_it() -> None:
    async with session(" ".join(f"This is sentence number {number} of many." for number in range(40))) as running:
        running.say(type="response.create")
        item = (await running.until("response.output_audio.delta"))["item_id"]
        running.say(type="conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=10**6)
        sent = (await running.until("conversation.item.truncated"))["audio_end_ms"]
        assert 0 < sent <= 40 * SECONDS_A_SENTENCE * 1000
        running.say(type="conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=sent + 1)
        assert (await running.until("error"))["error"]["param"] == "audio_end_ms"  # its end is known by now


async def test_a_truncation_that_is_refused_cancels_nothing() -> None:
    async with session(output_modalities=["text"]) as running:
        running.say(type="response.create")
        item = (await running.until("response.output_item.added"))["item"]["id"]
        running.say(type="conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=0)
        await running.until("error")
        await running.settle(200)
        assert [each["response"]["status"] for each in running.sent if each["type"] == "response.done"] == ["completed"]
