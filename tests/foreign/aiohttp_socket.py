"""A user of aiohttp who comes back after each end: prints the seq of every record."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any

import aiohttp


async def main(url: str, topic: str) -> None:
    place: dict[str, Any] = {"from_seq": 0}
    async with aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.ws_connect(url) as socket:
                    await socket.send_json({"op": "subscribe", "topic": topic, **place})
                    async for message in socket:
                        frame = message.json()
                        if frame["op"] != "record":
                            continue
                        for record in frame["records"]:
                            print(record["$seq"], flush=True)
                        place = {"from_seq": frame["to_seq"], "epoch": frame["epoch"]}
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
