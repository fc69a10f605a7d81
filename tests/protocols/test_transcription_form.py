"""Any form at all is either understood or refused by the name of a field."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.openai.transcription import TranscriptionForm, TranslationForm, VadChunking

_NAMES = [field.encode_name for field in msgspec.structs.fields(TranscriptionForm)]
_KEYS = st.sampled_from(["", "[]", "[type]", "[threshold]", "[", "]["])
_NAME = st.builds(str.__add__, st.sampled_from(_NAMES), _KEYS) | st.text(max_size=8)
_VALUE = (
    st.sampled_from(
        ["json", "verbose_json", "auto", "server_vad", "word", "logprobs", "true", "0.5", "1", "nan", "-1", "1e999"]
    )
    | st.sampled_from(['{"type":"server_vad","threshold":0.2}', "[" * 50_000, "{}", "null"])
    | st.text(max_size=12)
)  # fmt: skip


@given(st.lists(st.tuples(_NAME, _VALUE), max_size=8))
def test_any_form_is_understood_or_refused_with_a_field(fields: list[tuple[str, str]]) -> None:
    for kind in (TranscriptionForm, TranslationForm):
        refused: BadRequest | None = None
        form, chunking = kind(), None
        try:
            form = kind.of(fields)
            if isinstance(form, TranscriptionForm):
                chunking = form.chunking
        except BadRequest as error:
            refused = error
        if refused is None:
            assert 0 <= form.temperature <= 1
            assert chunking is None or isinstance(chunking, VadChunking)
        else:
            assert refused.status == 400
            assert refused.param


def test_an_object_may_be_written_in_fields_or_as_json() -> None:
    written = [("chunking_strategy[type]", "server_vad"), ("chunking_strategy[silence_duration_ms]", "200")]
    json = [("chunking_strategy", '{"type": "server_vad", "silence_duration_ms": 200}')]
    expected = VadChunking("server_vad", silence_duration_ms=200)
    assert TranscriptionForm.of(written).chunking == TranscriptionForm.of(json).chunking == expected
    assert TranscriptionForm.of([("chunking_strategy", "auto")]).chunking == VadChunking("server_vad")
