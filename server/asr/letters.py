"""Reads the vocabulary of wav2vec 2.0 and its relatives: letters by number, one of which stands between words.

transformers' class for it (``Wav2Vec2CTCTokenizer``) has no file of the ``tokenizers`` library.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Metaspace

from stentor.engine.loading.ctc_adapters import adapter_files
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.safetensors_index import read_json

from ..text.tokenizers.tokenizer import Tokenizer
from .language_prompts import LanguagePrompts

_FILE: Final = "vocab.json"
_MOST_PIECES: Final = 1 << 20
SPACE: Final = "▁"
_ISO_639_3: Final = (
    "af=afr am=amh ar=ara,arb as=asm az=azj,aze ba=bak be=bel bg=bul bn=ben bo=bod br=bre ca=cat cs=ces cy=cym da=dan "
    "de=deu el=ell en=eng es=spa et=ekk,est eu=eus fa=fas,pes fi=fin fo=fao fr=fra gl=glg gu=guj ha=hau haw=haw he=heb "
    "hi=hin hr=hrv ht=hat hu=hun hy=hye id=ind is=isl it=ita ja=jpn jw=jav ka=kat kk=kaz km=khm kn=kan ko=kor la=lat "
    "lb=ltz ln=lin lo=lao lt=lit lv=lav,lvs mg=mlg mi=mri mk=mkd ml=mal mn=mon,khk mr=mar ms=zlm,zsm,msa mt=mlt my=mya "
    "ne=npi,nep nl=nld nn=nno no=nob,nor oc=oci pa=pan pl=pol ps=pus,pbt pt=por ro=ron ru=rus sa=san sd=snd si=sin "
    "sk=slk sl=slv sn=sna so=som sq=sqi,als sr=srp su=sun sv=swe sw=swh,swa ta=tam te=tel tg=tgk th=tha tk=tuk tl=tgl "
    "tr=tur tt=tat uk=ukr ur=urd uz=uzb vi=vie yi=ydd,yid yo=yor yue=yue zh=cmn,zho "
)
"""Names of languages in adapters, by the codes that requests use."""
_NAMES: Final[Mapping[str, str]] = {
    "pad_token": "<pad>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
}
"""Of special tokens, with their texts where the files name none."""
_OF_PHONEMES: Final = "Wav2Vec2PhonemeCTCTokenizer"


def has_letters(folder: Path) -> bool:
    """Whether ``folder`` has such a vocabulary, and no other."""
    return (folder / _FILE).is_file() and not (folder / "tokenizer.json").is_file()


class Letters(NamedTuple):
    """A vocabulary; :data:`SPACE` is the token between words."""

    tokenizer: Tokenizer
    languages: LanguagePrompts | None = None
    """Those with adapters, by number; 0 is that of the model's own weights. None: there are none."""
    ids: Mapping[int, Mapping[int, int]] = {}
    """Tokens of the vocabulary by those of each language's own, by the number of the language."""


def letters_of(folder: Path) -> Letters:
    """For a folder for which :func:`has_letters` is true. Raises :class:`CheckpointError`."""
    file, settings = folder / _FILE, token_settings(folder)
    found: object = read_json(file)
    several: Mapping[str, object] = {}
    own = settings.get("target_lang")
    if isinstance(own, str) and isinstance(found, dict):  # of MMS
        several, found = found, found.get(own)
    pieces = checked_pieces(found, file)
    if settings.get("tokenizer_class") == _OF_PHONEMES:
        raise CheckpointError(
            f"The tokens of {folder} are phonemes ({_OF_PHONEMES}), expected letters: choose a model that writes text."
        )
    special = {name: token_text(settings.get(name), default) for name, default in _NAMES.items()}
    ids: dict[int, dict[int, int]] = {}
    numbers = {own: 0} if isinstance(own, str) and several else {}
    blank = pieces.get(special["pad_token"])
    for number, language in enumerate(adapter_files(folder) if several else (), 1):
        others = checked_pieces(several.get(language), file)
        if others.get(special["pad_token"]) != blank:
            raise CheckpointError(
                f"{file}: {special['pad_token']} of {language} has another number than that of {own}."
            )
        numbers.setdefault(language, number)
        ids[number] = {id: pieces.setdefault(piece, len(pieces)) for piece, id in others.items()}
    if settings.get("do_lower_case") is True:
        pieces = _lowered(pieces, {*special.values()})
    space = token_text(settings.get("word_delimiter_token"), "|")
    if space in pieces:
        pieces[SPACE] = pieces.pop(space)
    backend = Backend(BPE(pieces, []))
    backend.pre_tokenizer = Metaspace()
    backend.decoder = decoders.Metaspace()
    named = {name: text for name, text in special.items() if text in pieces}
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in named.values()])
    prompts = LanguagePrompts(_by_code(numbers), 0) if ids else None
    return Letters(Tokenizer(backend, named), prompts, ids)


def _by_code(numbers: Mapping[str, int]) -> dict[str, int]:
    """Numbers by names of adapters (``uzb-script-latin``), and by codes of two letters."""
    found = {name.replace("_", "-"): number for name, number in numbers.items()}
    for code, _, names in (entry.partition("=") for entry in _ISO_639_3.split()):
        among = (each for name in names.split(",") for each in found if each.partition("-")[0] == name)
        if (first := next(among, None)) is not None:
            found.setdefault(code, found[first])
    return found


def checked_pieces(found: object, file: Path) -> dict[str, int]:
    """Pieces with their numbers, of a vocab.json. Raises :class:`CheckpointError`."""
    found = found if isinstance(found, dict) else {}
    pieces = {piece: id for piece, id in found.items() if isinstance(id, int) and not isinstance(id, bool)}
    if len(pieces) < len(found) or not 0 < len(pieces) <= _MOST_PIECES or len({*pieces.values()}) < len(pieces):
        raise CheckpointError(f"{file}: expected an object of at most {_MOST_PIECES} letters, each with its number.")
    if min(pieces.values()) < 0 or max(pieces.values()) >= _MOST_PIECES:
        raise CheckpointError(f"{file}: expected numbers from 0 to {_MOST_PIECES - 1}.")
    return pieces


def _lowered(pieces: Mapping[str, int], special: Collection[str]) -> dict[str, int]:
    """Capitals as small letters, where the vocabulary has none of those."""
    return {piece if piece in special or piece.lower() in pieces else piece.lower(): id for piece, id in pieces.items()}


def token_settings(folder: Path) -> dict[str, object]:
    """What a folder's files say of its tokens, except for vocab.json. Raises :class:`CheckpointError`."""
    found: dict[str, object] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            found |= read_json(folder / name)
    return found


def token_text(value: object, default: str) -> str:
    """The text of a token as such files write it."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else default
