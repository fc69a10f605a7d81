"""Media of a model's files as a server opens them, and a server with pictures whose engine is a fake."""

from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry

from stentor.engine.model_config.towers.media_spec import MediaSpec
from stentor.protocols.ipc.cache_groups import CacheGroup
from stentor.server.config.config import StoreConfig
from stentor.server.config.limits import ProcessorLimits
from stentor.server.config.media import MediaConfig
from stentor.server.media.chat_media import ChatMedia
from stentor.server.media.decoding.decoded import DecodedLimits
from stentor.server.media.document_reader import DocumentReader
from stentor.server.media.fetching.fetcher import Fetcher
from stentor.server.media.fetching.loading import MediaLoader
from stentor.server.media.metrics import MediaMetrics
from stentor.server.media.processor import MediaProcessor
from stentor.server.storage.database import Database
from stentor.server.storage.opening import make_store
from stentor.server.text.pool import TokenizerPool
from stentor.server.text.tokenizers.loading import load_tokenizer
from stentor.tests.fakes import FakeEngine, fake_state, says

LONGEST_FETCHED = 1 << 22
"""Bytes of a file."""


def open_media(
    folder: Path, spec: MediaSpec, store: Database | None = None, figures: CollectorRegistry | None = None
) -> ChatMedia:
    """``folder``: of the model's files; its processor starts with the first medium. The caller closes it."""
    loader = MediaLoader(Fetcher(MediaConfig()), store or make_store(StoreConfig()), LONGEST_FETCHED)
    metrics = MediaMetrics(figures or CollectorRegistry(), "fake/model")
    processor = MediaProcessor(folder, ProcessorLimits(), metrics, DecodedLimits())
    return ChatMedia(loader, DocumentReader(ProcessorLimits(), DecodedLimits()), processor, spec)


class PictureServer:
    """A server of a model that is asked about pictures; its engine answers "a cat"."""

    def __init__(self, folder: Path, spec: MediaSpec, vocab_size: int, cross: CacheGroup, max_model_len: int) -> None:
        """``cross``: the cache of what is made of pictures."""
        self.engine = FakeEngine(answer=says("a cat"), max_model_len=max_model_len)
        assert self.engine.ready is not None
        self.engine.ready = msgspec.structs.replace(self.engine.ready, groups=(CacheGroup("full"), cross))
        self._opened: list[ChatMedia] = []
        store = make_store(StoreConfig())

        def media(figures: CollectorRegistry) -> ChatMedia:
            self._opened.append(open_media(folder, spec, store, figures))
            return self._opened[-1]

        pool = TokenizerPool(load_tokenizer(folder))
        self.state = fake_state(self.engine, pool=pool, vocab_size=vocab_size, media=media, spec=spec, store=store)

    def close(self) -> None:
        for media in self._opened:
            media.close()
