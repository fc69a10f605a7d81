"""Media of requests: limits, and allowed sources."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import msgspec

from stentor.protocols.ipc.flag import Flag

MAX_MEDIA: Final = 4096


class MediaCounts(msgspec.Struct, frozen=True):
    """The most of each medium in one prompt, the whole conversation included."""

    image: int = 256
    video: int = 16
    audio: int = 64

    def __str__(self) -> str:
        return ",".join(f"{name}={getattr(self, name)}" for name in self.__struct_fields__)


class MediaConfig(msgspec.Struct, frozen=True):
    """Allowed media of requests, and allowed URLs."""

    counts: Annotated[
        MediaCounts,
        Flag(
            "most images, videos and sounds in one prompt, as NAME=N with commas or as JSON; others keep "
            "their default; 0 refuses them",
            kind="media_counts",
            name="limit-mm-per-prompt",
        ),
    ] = MediaCounts()
    language_model_only: Annotated[
        bool,
        Flag("refuse media, also for models that support them; transcription still works"),
    ] = False
    processor_kwargs: Annotated[
        Mapping[str, Any],
        Flag(
            "default mm_processor_kwargs of requests, which override them: the resolution of media",
            kind="processor_kwargs",
            name="mm-processor-kwargs",
        ),
    ] = MappingProxyType({})
    loading_kwargs: Annotated[
        Mapping[str, Any],
        Flag(
            "default media_io_kwargs of requests, which override them: the frames of videos",
            kind="loading_kwargs",
            name="media-io-kwargs",
        ),
    ] = MappingProxyType({})

    mm_embeds: Annotated[
        bool,
        Flag(
            "accept clients' own embeddings of pictures (image_embeds), as torch.save, safetensors or .npy; for "
            "trusted clients only: the content is not checked",
            name="enable-mm-embeds",
        ),
    ] = False
    prompt_embeds: Annotated[
        bool,
        Flag(
            "accept prompts of completions as embeddings of their tokens (prompt_embeds), in the same forms; for "
            "trusted clients only: the content is not checked",
            name="enable-prompt-embeds",
        ),
    ] = False

    domains: Annotated[
        tuple[str, ...],
        Flag(
            "a host from which media may be fetched, or *.HOST for all below it; may be repeated; by default "
            "any public host",
            kind="domains",
            name="media-domain",
            aliases=("allowed-media-domains",),
        ),
    ] = ()
    allow_http: Annotated[bool, Flag("fetch media by http as well as https", name="media-allow-http")] = False
    ports: Annotated[
        tuple[int, ...],
        Flag(
            "a port from which media may be fetched, besides 80 and 443; may be repeated", 1, 65535, name="media-port"
        ),
    ] = ()
    allow_private: Annotated[
        bool,
        Flag(
            "fetch media from loopback and private addresses too; dangerous: clients can then reach services "
            "that trust this server; cloud metadata stays closed",
            name="media-allow-private",
        ),
    ] = False
    root: Annotated[
        Path | None,
        Flag(
            "a folder for file: URLs, readable by every client; by default file: URLs are refused",
            kind="folder",
            name="media-root",
            aliases=("allowed-local-media-path",),
        ),
    ] = None
    max_bytes: Annotated[int, Flag("largest file that one URL may return", kind="size", name="media-max-bytes")] = (
        64 << 20
    )
    timeout: Annotated[
        float,
        Flag(
            "time limit of one fetch, with redirects and waiting",
            kind="some_seconds",
            name="media-timeout",
        ),
    ] = 20.0
    max_fetches: Annotated[int, Flag("parallel fetches of URLs", 1, 1024, name="media-max-fetches")] = 16
