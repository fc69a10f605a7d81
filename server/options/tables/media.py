"""What the server fetches on behalf of its clients."""

from typing import Final

from .. import kinds
from ..option import Option

OPTIONS: Final = (
    Option(
        "media-domain",
        "media.domains",
        kinds.domains(),
        "a host that media may be fetched from, or *.HOST for all below it; may be repeated; none is any public host",
        "media",
    ),
    Option(
        "media-allow-http", "media.allow_http", kinds.switch(), "fetch media by http too, not only by https", "media"
    ),
    Option(
        "media-port",
        "media.ports",
        kinds.integers(1, 65535),
        "a port that media may be fetched from, besides 80 and 443; may be repeated",
        "media",
    ),
    Option(
        "media-allow-private",
        "media.allow_private",
        kinds.switch(),
        "fetch media from loopback and private addresses too; dangerous: whoever may ask this server can then "
        "reach whatever trusts it; cloud metadata stays closed",
        "media",
    ),
    Option(
        "media-root",
        "media.root",
        kinds.folder(),
        "a folder below which file: URLs are read, for every client; none reads no files",
        "media",
    ),
    Option("media-max-bytes", "media.max_bytes", kinds.size(), "the most that one URL may bring", "media"),
    Option(
        "media-timeout",
        "media.timeout",
        kinds.some_seconds(),
        "how long one URL may take, with its redirects and its wait for a place",
        "media",
    ),
    Option("media-max-fetches", "media.max_fetches", kinds.integer(1, 1024), "URLs fetched at the same time", "media"),
)
