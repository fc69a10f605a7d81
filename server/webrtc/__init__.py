"""Our end of WebRTC connections: one Opus track each way and one data channel, all over one socket.

::

    sdp.py        checks offers, and writes answers
    ice.py        sockets that answer peers with the password, and contact no others
    opus.py       decodes packets to gapless pcm in order; encodes pcm as packets
    peer.py       one connection, over aiortc's transports

aiortc belongs to the extra ``webrtc``, so :mod:`.ice`, :mod:`.opus` and :mod:`.peer` are imported with the first call.
These modules bound its memory for a peer, since aiortc bounds little: datagrams, addresses, SSRCs, and streams and
chunks of the data channel.
"""
