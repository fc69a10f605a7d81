"""Hostile files in the process that prepares media: each is refused by its field, and whole ones are made after it."""

import asyncio
import io
import resource
from collections.abc import Iterable
from pathlib import Path

import pytest
from PIL import Image
from prometheus_client import CollectorRegistry

from stentor.engine.model_config.towers.media_spec import Modality
from stentor.loadtest.hostile_files import IMAGES
from stentor.protocols.common.errors import BadRequest
from stentor.server.config.limits import ProcessorLimits
from stentor.server.media.decoding.decoded import DecodedLimits
from stentor.server.media.metrics import MediaMetrics
from stentor.server.media.processor import MediaProcessor, Wanted
from stentor.tests.server.media.hostile import VIDEOS
from stentor.tests.server.media.pictures import picture, png
from stentor.tests.server.media.videos import video
from stentor.tests.support.vision_models import qwen2_5_vl

KEPT_BYTES = 32 << 20
"""What refused files may leave behind of memory: what allocators and libraries keep for the next."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")


def resident(pids: Iterable[int]) -> int:
    """Bytes."""
    pages = (Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in pids)
    return sum(map(int, pages)) * resource.getpagesize()


def test_one_process_outlives_them_all_and_reads_every_format(tmp_path: Path) -> None:
    qwen2_5_vl(tmp_path)

    async def use() -> None:
        processor = MediaProcessor(tmp_path, ProcessorLimits(), MediaMetrics(CollectorRegistry(), "m"), DecodedLimits())

        async def refused(modality: Modality, name: str, data: bytes) -> None:
            with pytest.raises(BadRequest) as error:
                await processor.process(Wanted(modality, data, "here"), "")
            assert error.value.param == "here", name

        try:
            await processor.describe()
            pids = processor.pids
            assert (await processor.process(Wanted("image", png(2000, 1500), "large"), "")).replacement
            assert (await processor.process(Wanted("video", video(), "video"), "")).replacement
            before = resident(pids)
            for name, data in IMAGES.items():
                await refused("image", name, data)
            for name, data in VIDEOS.items():
                await refused("video", name, data)
            assert processor.pids == pids
            assert resident(pids) - before < KEPT_BYTES
            for format in FORMATS:  # nothing is left to be imported, where no file can be opened
                file = io.BytesIO()
                picture(64, 48).save(file, format)
                assert (await processor.process(Wanted("image", file.getvalue(), format), "")).replacement
            grey = io.BytesIO()
            Image.new("I;16", (64, 48), 40_000).save(grey, "PNG")
            assert (await processor.process(Wanted("image", grey.getvalue(), "16 bits"), "")).replacement
            assert processor.pids == pids
        finally:
            processor.close()

    asyncio.run(use())
