"""What is taken of pictures, sounds and videos in requests, and where they may be fetched from."""

from pathlib import Path
from typing import Annotated, Final

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
    """What media requests may bring, and what may be fetched for clients that name it by URL."""

    counts: Annotated[
        MediaCounts,
        Flag(
            "the most images, videos and sounds in one prompt, as NAME=N with commas or as JSON; what is not named "
            "keeps its default; 0 refuses them",
            kind="media_counts",
            name="limit-mm-per-prompt",
        ),
    ] = MediaCounts()
    language_model_only: Annotated[
        bool,
        Flag("take no media, whatever a model could see or hear; a transcription model takes its audio all the same"),
    ] = False

    mm_embeds: Annotated[
        bool,
        Flag(
            "take embeddings of pictures that clients have made themselves (image_embeds), as safetensors or .npy; "
            "only for clients that are trusted: they say what the model sees",
            name="enable-mm-embeds",
        ),
    ] = False

    domains: Annotated[
        tuple[str, ...],
        Flag(
            "a host that media may be fetched from, or *.HOST for all below it; may be repeated; none is any "
            "public host",
            kind="domains",
            name="media-domain",
            aliases=("allowed-media-domains",),
        ),
    ] = ()
    allow_http: Annotated[bool, Flag("fetch media by http too, not only by https", name="media-allow-http")] = False
    ports: Annotated[
        tuple[int, ...],
        Flag("a port that media may be fetched from, besides 80 and 443; may be repeated", 1, 65535, name="media-port"),
    ] = ()
    allow_private: Annotated[
        bool,
        Flag(
            "fetch media from loopback and private addresses too; dangerous: whoever may use this server can "
            "then reach whatever trusts it; cloud metadata stays closed",
            name="media-allow-private",
        ),
    ] = False
    root: Annotated[
        Path | None,
        Flag(
            "a folder below which file: URLs are read, for every client; by default no files are read",
            kind="folder",
            name="media-root",
            aliases=("allowed-local-media-path",),
        ),
    ] = None
    max_bytes: Annotated[int, Flag("the most that one URL may bring", kind="size", name="media-max-bytes")] = 64 << 20
    timeout: Annotated[
        float,
        Flag(
            "how long one URL may take, with its redirects and its wait for a place",
            kind="some_seconds",
            name="media-timeout",
        ),
    ] = 20.0
    max_fetches: Annotated[int, Flag("URLs fetched at the same time", 1, 1024, name="media-max-fetches")] = 16
