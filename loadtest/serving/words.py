"""Prompts without a tokenizer: common English words, nearly each of them one token in the vocabularies of today."""

from typing import Final

import numpy as np

_TEXT: Final = (
    "the of and to in is you that it he was for on are with as his they be at one have this from or had by but "
    "some what there we can out other were all your when up use word how said an each she which do their time if "
    "will way about many then them would write like so these her long make thing see him two has look more day "
    "could go come did my sound no most number who over know water than call first people may down side been now "
    "find any new work part take get place made live where after back little only round man year came show every "
    "good me give our under name very through just form much great think say help low line before turn cause same "
    "mean differ move right boy old too does tell sentence set three want air well also play small end put home "
    "read hand port large spell add even land here must big high such follow act why ask men change went light "
    "kind off need house picture try us again animal point mother world near build self earth father head stand "
    "own page should country found answer school grow study still learn plant cover food sun four thought let "
    "keep eye never last door between city tree cross since hard start might story saw far sea draw left late run "
    "while press close night real life few stop open seem together next white children begin got walk example "
    "ease paper often always music those both mark book letter until mile river car feet care second group carry "
    "took rain eat room friend began idea fish mountain north once base hear horse cut sure watch color face wood "
    "main"
)
WORDS: Final = tuple(_TEXT.split())


def random_words(rng: np.random.Generator, count: int) -> str:
    """``count`` words with blanks between them."""
    return " ".join([WORDS[index] for index in rng.integers(0, len(WORDS), count).tolist()])


def random_tokens(rng: np.random.Generator, count: int, low: int, high: int) -> list[int]:
    """``count`` token ids from ``low`` up to but not including ``high``."""
    ids: list[int] = rng.integers(low, high, count).tolist()
    return ids
