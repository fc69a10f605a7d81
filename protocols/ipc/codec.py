"""Encoders and typed decoders: one decoder per mailbox. Frames are msgpack, never pickle."""

from typing import Final

import msgspec

from .actors import ClientInbox, EngineInbox, EngineWorkerInbox, WorkerInbox

encoder: Final = msgspec.msgpack.Encoder()

decode_engine: Final = msgspec.msgpack.Decoder(EngineInbox)
decode_client: Final = msgspec.msgpack.Decoder(ClientInbox)
decode_worker: Final = msgspec.msgpack.Decoder(WorkerInbox)
decode_engine_worker: Final = msgspec.msgpack.Decoder(EngineWorkerInbox)
