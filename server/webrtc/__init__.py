"""Our end of WebRTC connections: one Opus track each way and one data channel, all over one socket.

::

    sdp.py        what a client offers, checked, and what is answered
    ice.py        sockets that answer who knows the password, and look for nobody
    opus.py       packets as they come, in order and without holes, as pcm; pcm as packets
    peer.py       one connection, over aiortc's transports

aiortc comes with the extra ``webrtc``, so that :mod:`.ice`, :mod:`.opus` and :mod:`.peer` are imported where the first
call is made. What it holds for a peer is bounded here, for it bounds little itself: datagrams, addresses, SSRCs, and
streams and chunks of the data channel.
"""
