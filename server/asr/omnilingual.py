"""The languages of OmniASR by their two-letter codes: it names each by three letters and a script."""

from collections.abc import Mapping
from typing import Final

_CALLED: Final = (
    "ab=abk_cyrl af=afr_latn ak=aka_latn am=amh_ethi an=arg_latn ar=arb_arab as=asm_beng av=ava_cyrl ay=ayr_latn "
    "az=aze_latn ba=bak_cyrl be=bel_cyrl bg=bul_cyrl bi=bis_latn bm=bam_latn bn=ben_beng bo=bod_tibt br=bre_latn "
    "bs=bos_latn ca=cat_latn ce=che_cyrl cs=ces_latn cv=chv_cyrl cy=cym_latn da=dan_latn de=deu_latn dv=div_thaa "
    "dz=dzo_tibt ee=ewe_latn el=ell_grek en=eng_latn eo=epo_latn es=spa_latn et=ekk_latn eu=eus_latn fa=fas_arab "
    "ff=ful_latn fi=fin_latn fj=fij_latn fo=fao_latn fr=fra_latn fy=fry_latn ga=gle_latn gl=glg_latn gn=grn_latn "
    "gu=guj_gujr gv=glv_latn ha=hau_latn he=heb_hebr hi=hin_deva hr=hrv_latn ht=hat_latn hu=hun_latn hy=hye_armn "
    "hz=her_latn ia=ina_latn id=ind_latn ig=ibo_latn ik=ipk_latn is=isl_latn it=ita_latn ja=jpn_jpan jv=jav_latn "
    "ka=kat_geor ki=kik_latn kj=kua_latn kk=kaz_cyrl km=khm_khmr kn=kan_knda ko=kor_hang kr=knc_latn ks=kas_arab "
    "ku=kur_arab kv=kpv_cyrl kw=cor_latn ky=kir_cyrl la=lat_latn lb=ltz_latn lg=lug_latn ln=lin_latn lo=lao_laoo "
    "lt=lit_latn lv=lav_latn mg=mlg_latn mh=mah_latn mi=mri_latn mk=mkd_cyrl ml=mal_mlym mn=mon_cyrl mr=mar_deva "
    "ms=zsm_latn mt=mlt_latn my=mya_mymr nb=nob_latn ne=nep_deva ng=ndo_latn nl=nld_latn nn=nno_latn no=nob_latn "
    "ny=nya_latn oc=oci_latn om=orm_latn or=ory_orya os=oss_cyrl pa=pan_guru pl=pol_latn ps=pus_arab pt=por_latn "
    "rn=run_latn ro=ron_latn ru=rus_cyrl rw=kin_latn sc=srd_latn sd=snd_arab sg=sag_latn si=sin_sinh sk=slk_latn "
    "sl=slv_latn sm=smo_latn sn=sna_latn so=som_latn sq=als_latn sr=srp_cyrl su=sun_latn sv=swe_latn sw=swh_latn "
    "ta=tam_taml te=tel_telu tg=tgk_cyrl th=tha_thai ti=tir_ethi tk=tuk_latn tl=tgl_latn tn=tsn_latn tr=tur_latn "
    "ts=tso_latn tt=tat_cyrl tw=twi_latn ug=uig_arab uk=ukr_cyrl ur=urd_arab uz=uzb_latn vi=vie_latn wo=wol_latn "
    "xh=xho_latn yi=ydd_hebr yo=yor_latn za=zyb_latn zh=cmn_hans zu=zul_latn "
)
OMNILINGUAL: Final[Mapping[str, str]] = {
    code: called for code, _, called in (entry.partition("=") for entry in _CALLED.split())
}
"""A model's names of languages, by code (ISO 639-1). It has tokens for 1,600 more."""
