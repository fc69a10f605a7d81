"""The playground at ``/``: files for a browser, as they are. Nothing is built, and nothing comes from elsewhere.

::

    index.html    the page
    style.css
    app.js        tabs, models, what both tabs share          api.js      addresses, key, errors, server-sent events
    chat.js       the tab "Chat"                              voice.js    the tab "Voice"
    session.js    a realtime session over a WebSocket         sound.js    microphone, files, loudspeaker
    worklets.js   what runs in the audio thread               log.js      the list of events
    attachments.js   files that go with a message
"""

from collections.abc import Mapping
from typing import Final

TEXT_TYPES: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
INDEX: Final = "index.html"
FILES: Final = (
    INDEX,
    "style.css",
    "app.js",
    "api.js",
    "chat.js",
    "attachments.js",
    "voice.js",
    "session.js",
    "sound.js",
    "worklets.js",
    "log.js",
    "icon.svg",
)
PATHS: Final[Mapping[str, str]] = {"/" if name == INDEX else f"/page/{name}": name for name in FILES}
"""Paths and the files that lie there; anyone may read them, for there is nothing of this server in them."""
