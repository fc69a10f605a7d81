"""The errors of a channel.

::

    ChannelError
    ├── FrameTooLarge      the frame is larger than a channel carries
    ├── CorruptChannel     the shared memory holds what no writer writes; the channel is unusable
    ├── ChannelClosed      this side closed the endpoint
    └── PeerDied           the other process is gone, and all that it sent has been received
        └── PeerClosed     the other side closed its endpoint, and all that it sent has been received
"""


class ChannelError(Exception):
    """Base of every error that a channel raises."""


class FrameTooLarge(ChannelError):
    """The frame is larger than a channel carries."""


class CorruptChannel(ChannelError):
    """The shared memory holds what no writer writes."""


class ChannelClosed(ChannelError):
    """This side closed the endpoint."""


class PeerDied(ChannelError):
    """The other process is gone, and all that it sent has been received."""


class PeerClosed(PeerDied):
    """The other side closed its endpoint, and all that it sent has been received."""
