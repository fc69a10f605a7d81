"""The tokens of a Speech2Text: texts are those of transformers' tokenizer, and what is not computed is refused."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from transformers import Speech2TextTokenizer

from stentor.engine.loading.errors import CheckpointError
from stentor.server.app.auxiliary_models import open_transcription
from stentor.server.asr.model import TranscriptionModel
from stentor.server.asr.untimed_vocabulary import UntimedVocabulary
from stentor.server.config.models import TranscriptionConfig
from stentor.tests.parity.transcribers import tiny_speech2text
from stentor.tests.server.asr.scripted import Said, engine_of, model_of

TEXT = "so it was said and so it is"


def write(folder: Path, *extra: str, **settings: Any) -> Path:
    """A checkpoint with transformers' tokenizer, whose pieces are of one sentence."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([TEXT] * 20), model_writer=made, vocab_size=24, model_type="bpe", minloglevel=9
    )
    (folder / "sentencepiece.bpe.model").write_bytes(made.getvalue())
    read = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
    pieces = [read.id_to_piece(number) for number in range(3, read.get_piece_size())]
    names = ["<s>", "<pad>", "</s>", "<unk>", *pieces, *extra]
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(names)}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Speech2TextTokenizer", **settings}))
    tiny_speech2text(vocab_size=len(names), decoder_layers=1, encoder_layers=1, pad_token_id=1).save_pretrained(folder)
    return folder


def opened(folder: Path) -> TranscriptionModel:
    client = engine_of(model_of(lambda _: Said([])))
    return open_transcription(TranscriptionConfig(path=str(folder)), client, folder)


@pytest.mark.parametrize("upper", [False, True])
def test_texts_are_those_of_transformers(tmp_path: Path, upper: bool) -> None:
    vocabulary = opened(write(tmp_path, do_upper_case=upper)).vocabulary
    theirs: Any = Speech2TextTokenizer.from_pretrained(tmp_path)
    assert isinstance(vocabulary, UntimedVocabulary)
    tokens = theirs(TEXT).input_ids
    assert len(tokens) > 5
    assert vocabulary.decode([2, *tokens, 1]).strip() == theirs.decode(tokens, skip_special_tokens=True)
    assert vocabulary.decode(tokens).strip() == (TEXT.upper() if upper else TEXT)
    assert (vocabulary.eot, vocabulary.beginning("de", "transcribe", timestamps=False)) == (2, [2])


def test_a_model_of_several_languages_begins_with_the_one_that_its_files_choose(tmp_path: Path) -> None:
    folder = write(tmp_path, "<lang:de>", "<lang:fr>")
    with pytest.raises(CheckpointError, match=r"writes several languages: choose one .* as forced_bos_token_id"):
        opened(folder)
    names = json.loads((folder / "vocab.json").read_text())
    file = folder / "generation_config.json"
    chosen = {**json.loads(file.read_text()), "forced_bos_token_id": names["<lang:fr>"]}
    file.write_text(json.dumps(chosen))
    vocabulary = opened(folder).vocabulary
    assert vocabulary.beginning(None, "transcribe", timestamps=False) == [2, names["<lang:fr>"]]
    assert not vocabulary.is_text(names["<lang:de>"])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"normalize_vars": False}, "normalize_vars is False, expected True"),
        ({"sampling_rate": 8000}, "sampling_rate is 8000, expected 16000"),
        (None, "There is no vocab.json"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path: Path, settings: dict[str, Any] | None, expected: str) -> None:
    folder = write(tmp_path)
    if settings is None:
        (folder / "vocab.json").unlink()
    else:
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=expected):
        opened(folder)
