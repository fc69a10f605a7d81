"""The numbers that tell Nemotron 3.5 ASR the language of its audio."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.safetensors_index import read_json
from stentor.engine.model_config.speech.framewise import LanguagePromptSpec

_AUTO: Final = "auto"
_MOST_NAMES: Final = 4096
_PUBLISHED: Final = (
    "en-US/en=0 en-GB=1 es-ES=2 es-US/es=3 zh-CN/zh-ZH=4 zh-TW=5 hi-IN/hi/hi-HI=6 ar-AR/ar=7 fr-FR/fr=8 de-DE/de=9 "
    "ja-JP/ja-JA=10 ru-RU/ru=11 pt-BR=12 pt-PT/pt=13 ko-KR/ko/ko-KO=14 it-IT/it=15 nl-NL/nl=16 pl-PL/pl=17 "
    "tr-TR/tr=18 uk-UA/uk=19 ro-RO/ro=20 el-GR/el=21 cs-CZ/cs=22 hu-HU/hu=23 sv-SE/sv=24 da-DK/da=25 fi-FI/fi=26 "
    "no-NO/no=27 sk-SK/sk=28 hr-HR/hr=29 bg-BG/bg=30 lt-LT/lt=31 th-TH=32 vi-VN=33 id-ID=34 ms-MY=35 bn-IN=36 "
    "ur-PK=37 fa-IR=38 ta-IN=39 te-IN=40 mr-IN=41 gu-IN=42 kn-IN=43 ml-IN=44 si-LK=45 ne-NP=46 km-KH=47 sw-KE=48 "
    "am-ET=49 ha-NG=50 zu-ZA=51 yo-NG=52 ig-NG=53 af-ZA=54 rw-RW=55 so-SO=56 ny-MW=57 ln-CD=58 or-KE=59 et-EE/et=60 "
    "lv-LV/lv=61 sl-SI/sl=62 he-IL=64 ku-TR=65 az-AZ=66 ka-GE=67 hy-AM=68 uz-UZ=69 tg-TJ=70 ky-KG=71 qu-PE=80 "
    "ay-BO=81 gn-PY=82 nah-MX=83 mi-NZ=96 haw-US=97 sm-WS=98 to-TO=99 fr-CA=100 mt-MT=102 nb-NO/nb=103 nn-NO/nn=104 "
)
"""Names of the languages with each number, of the published models."""


class LanguagePrompts:
    """What a request's language is to the model."""

    def __init__(self, by_locale: Mapping[str, int], default: int) -> None:
        """``by_locale``: numbers by code (``de``) and locale (``de-DE``); ``default``: that of no language."""
        self.by_locale: Final = dict(by_locale)
        self.languages: Final = {name: id for name, id in by_locale.items() if "-" not in name}
        """Numbers by code; a language that is only there with regions has that of the first."""
        for name, id in by_locale.items():
            self.languages.setdefault(name.partition("-")[0], id)
        self._default = default
        self._locales = {name.lower(): name for name in by_locale}

    def locale_of(self, language: str) -> str | None:
        """The locale (``pt-BR``) that a request names; None if it names no region, or another."""
        return self._locales.get(language.strip().replace("_", "-").lower())

    def number_of(self, language: str | None) -> int:
        """``language``: a locale, a code, or none of them, as where it is unknown."""
        name = language or ""
        return self.by_locale.get(name, self.languages.get(name, self._default))


def language_prompts_of(folder: Path, spec: LanguagePromptSpec) -> LanguagePrompts:
    """Those of ``processor_config.json``, or else the published ones. Raises :class:`CheckpointError`."""
    file = folder / "processor_config.json"
    named = read_json(file).get("prompt_dictionary") if file.is_file() else None
    if named is None:
        named = _published()
    if not isinstance(named, dict) or len(named) > _MOST_NAMES:
        raise CheckpointError(f"{file}: prompt_dictionary is no object of at most {_MOST_NAMES} languages.")
    found = {name: _checked(number, name, file, spec.count) for name, number in named.items()}
    default = found.pop(_AUTO, spec.default)
    return LanguagePrompts(found, default)


def _published() -> dict[str, int]:
    entries = (entry.rpartition("=") for entry in _PUBLISHED.split())
    return {name: int(number) for names, _, number in entries for name in names.split("/")}


def _checked(number: object, name: str, file: Path, count: int) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < count:
        raise CheckpointError(
            f"{file}: prompt_dictionary has {number!r} for {name}, expected a number below {count}, the num_prompts of "
            "config.json."
        )
    return number
