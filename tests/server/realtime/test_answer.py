from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.realtime.server import Response, ServerEvent, StatusDetails
from stentor.server.api.realtime.answering.answer import ResponseWriter
from stentor.server.api.realtime.conversation.conversation import RealtimeConversation


def test_what_a_model_says_after_its_answer_has_ended_is_told_to_nobody() -> None:
    reported: list[ServerEvent] = []
    conversation = RealtimeConversation("conv_1", Limits())
    response = Response(
        id="resp_1", output=[], conversation_id="conv_1", output_modalities=["audio"], max_output_tokens="inf"
    )
    answer = ResponseWriter(response, reported.append, conversation)
    answer.begin([])
    answer.end(StatusDetails("cancelled", "turn_detected"), None)
    count = len(reported)
    late = answer.write("Once upon a time")
    answer.play(late, bytes(480))
    answer.call("look", None)
    answer.argue("{}")
    answer.end_call()
    assert len(reported) == count
    assert response.output == []
