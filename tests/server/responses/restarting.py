"""A server that ends under its responses, as seen from the next one on the same store."""

import asyncio

from stentor.server.app.state import ServerState

_PATIENCE = 60.0


async def until_written(state: ServerState) -> None:
    """Waits until the store has every event that has been logged."""
    async with asyncio.timeout(_PATIENCE):
        while any([live.log is not None and await live.log.stretch() for live in state.responses]):
            await asyncio.sleep(0.005)


async def dies(state: ServerState) -> None:
    """Ends the server; what it had not written is lost, as by a crash."""
    await state.responses.close()
    await state.store.close()
