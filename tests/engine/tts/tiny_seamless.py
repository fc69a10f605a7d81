"""A checkpoint of SeamlessM4T as transformers writes it, with made-up weights, which speaks two languages."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from stentor.tests.parity.transcribers import tiny_seamless

LETTERS = "abcdefghijklmnopqrstuvwxyz ."
MARKS = ("<pad>", "<unk>", "<s>", "</s>", "__eng__", "__deu__")


def write_tiny_seamless(folder: Path, version: str) -> Path:
    """The ``version``: "v2", or "" for the first."""
    words = [*MARKS, *LETTERS]
    backend = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = Split("", "isolated")
    backend.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    backend.post_processor = TemplateProcessing(
        single="__eng__ $A </s>", special_tokens=[("__eng__", MARKS.index("__eng__")), ("</s>", MARKS.index("</s>"))]
    )
    PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>").save_pretrained(folder)
    units = {} if version else {"t2u_max_new_tokens": 12}
    model = tiny_seamless(f"{version}ForTextToSpeech", max_new_tokens=12, **units)
    told = model.generation_config
    told.text_decoder_lang_to_code_id = {"eng": MARKS.index("__eng__"), "deu": MARKS.index("__deu__"), "afr": 60}
    told.t2u_lang_code_to_id = {"eng": 30, "deu": 31}
    told.vocoder_lang_code_to_id = {"deu": 0, "eng": 2}
    told.id_to_text = {str(number): words[number] if number < len(words) else "ab" for number in range(200)}
    told.char_to_id = {letter: number % 20 for number, letter in enumerate(LETTERS)}
    model.save_pretrained(folder)
    return folder
