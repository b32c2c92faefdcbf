"""A user of httpx with many requests at once: prints how many were answered well."""

from __future__ import annotations

import asyncio
import json
import sys

import httpx

UPLOAD = json.dumps(["line"] * 4_000).encode()
FIELDS = {"content-type": "application/json"}


async def main(url: str, *, is_http2: bool) -> None:
    answered = 0
    async with httpx.AsyncClient(
        base_url=url, http1=not is_http2, http2=is_http2, timeout=60, trust_env=False
    ) as client:

        async def work(worker: int) -> None:
            nonlocal answered
            for number in range(20):
                record = {"records": [{"data": f"{worker}-{number}"}]}
                reply = await client.post("/topics/small", json=record)
                answered += reply.status_code in (200, 201)
            reply = await client.post("/topics/large/range", json={"from_seq": 0})
            answered += reply.status_code == 200 and len(reply.content) > 3_000_000
            # Refused while it is on its way: the requests beside it go on.
            reply = await client.post("/nowhere", content=UPLOAD, headers=FIELDS)
            answered += reply.status_code == 404

        await asyncio.gather(*map(work, range(16)))
    print(answered)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], is_http2=sys.argv[2] == "2"))
