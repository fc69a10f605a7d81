"""The languages of SeamlessM4T by their two-letter codes: it names each by three letters."""

from collections.abc import Mapping
from typing import Final

_CALLED: Final = (
    "af=afr am=amh ar=arb as=asm az=azj be=bel bg=bul bn=ben bs=bos ca=cat cs=ces cy=cym da=dan de=deu el=ell en=eng "
    "es=spa et=est eu=eus fa=pes ff=fuv fi=fin fr=fra ga=gle gl=glg gu=guj he=heb hi=hin hr=hrv hu=hun hy=hye id=ind "
    "ig=ibo is=isl it=ita ja=jpn jw=jav ka=kat kk=kaz km=khm kn=kan ko=kor ky=kir lg=lug lo=lao lt=lit lv=lvs mk=mkd "
    "ml=mal mn=khk mr=mar ms=zsm mt=mlt my=mya nb=nob ne=npi nl=nld nn=nno no=nob ny=nya om=gaz or=ory pa=pan pl=pol "
    "ps=pbt pt=por ro=ron ru=rus sd=snd sk=slk sl=slv sn=sna so=som sr=srp sv=swe sw=swh ta=tam te=tel tg=tgk th=tha "
    "tl=tgl tr=tur uk=ukr ur=urd uz=uzn vi=vie yo=yor zh=cmn zu=zul"
)
SEAMLESS: Final[Mapping[str, str]] = {
    code: called for code, _, called in (entry.partition("=") for entry in _CALLED.split())
}
"""A model's names of languages, by code (ISO 639-1). It has tokens for a few more."""
