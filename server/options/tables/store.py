"""What is kept of requests once they have been answered."""

from typing import Final

from .. import kinds
from ..option import Option

OPTIONS: Final = (
    Option(
        "store",
        "store.path",
        kinds.path(),
        "file in which responses and conversations are kept, so that they outlive the server; without it they are "
        "kept in memory",
        "store",
    ),
    Option(
        "store-ttl",
        "store.ttl",
        kinds.seconds(),
        "how long what nobody uses is kept; 0 is no limit",
        "store",
    ),
    Option(
        "store-max-bytes",
        "store.max_bytes",
        kinds.size(),
        "how much is kept; beyond it, what was used longest ago by whoever has more than a fair share is deleted",
        "store",
    ),
    Option(
        "max-file-bytes",
        "store.max_file_bytes",
        kinds.size(),
        "size of a file that a client may bring",
        "store",
    ),
    Option(
        "max-batches",
        "store.max_batches",
        kinds.integer(0, 1 << 20),
        "batches that may be open at the same time, of one of several keys half; a further one gets 429",
        "store",
    ),
    Option(
        "max-background",
        "store.max_background",
        kinds.integer(0, 1 << 20),
        "responses that may run in the background at the same time, of one of several keys half; a further one gets "
        "429",
        "store",
    ),
)
