"""uvicorn looks every 100 ms whether it is to end, and waits as long again when it does: hundreds of tests end one."""

import asyncio
from typing import Any

SECONDS = 0.005


class QuickTicks:
    """``asyncio`` as ``uvicorn.server`` sees it, with short pauses."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, delay: float) -> None:
        await asyncio.sleep(min(delay, SECONDS))
