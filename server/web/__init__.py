"""The playground at ``/``: files for a browser, without a build step and without external resources.

::

    index.html      the page                                    style.css, math.css
    app.js          tabs, models, shared parts                  api.js          addresses, key, errors, events
    dom.js          elements                                    theme.js        light and dark
    models.js       names of models, lists of them              panels.js       panels beside a conversation
    chat.js         the tab "Chat"                              answer.js       one answer, while it is generated
    conversation.js a tree of messages                          history.js      the list of conversations
    store.js        storage of conversations                    settings.js     settings of each request
    message.js      display of one message                      welcome.js      display of an empty conversation
    markdown.js     Markdown as elements                        highlight.js    colours for code
    math.js         formulas                                    temml.js        TeX as MathML: Temml, as npm has it
    attachments.js  files that go with a message                media.js        media of stored messages
    voice.js        the tab "Voice"                             session.js      a realtime session over a WebSocket
    captions.js     captions                                    stopwatch.js    latencies of answers
    sound.js        microphone, files, loudspeaker              worklets.js     code of the audio thread
    trace.js        display of detected speech                  call.js         a realtime session over WebRTC
    log.js          the list of events                          live.js         the tab "Live"
    figures.js      rates and percentiles between two answers   presets.js      named settings
    code.js         a request as a program                      tools.js        the tab "More"
    schema.js       a form for a JSON schema                    calls.js        calls of tools, and questions about them
    tokens.js       probabilities of tokens                     responses.js    requests with MCP servers
    language.js     the page's language                         german.js       its texts in German
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
    "math.css",
    "answer.js",
    "api.js",
    "app.js",
    "attachments.js",
    "call.js",
    "calls.js",
    "captions.js",
    "chat.js",
    "code.js",
    "conversation.js",
    "dom.js",
    "figures.js",
    "german.js",
    "highlight.js",
    "history.js",
    "language.js",
    "live.js",
    "log.js",
    "markdown.js",
    "math.js",
    "media.js",
    "message.js",
    "models.js",
    "panels.js",
    "presets.js",
    "responses.js",
    "schema.js",
    "session.js",
    "settings.js",
    "sound.js",
    "stopwatch.js",
    "store.js",
    "temml.js",
    "theme.js",
    "tokens.js",
    "tools.js",
    "trace.js",
    "voice.js",
    "welcome.js",
    "worklets.js",
    "icon.svg",
)
PATHS: Final[Mapping[str, str]] = {"/" if name == INDEX else f"/page/{name}": name for name in FILES}
"""Paths and the files that lie there; anyone may read them, for there is nothing of this server in them."""
