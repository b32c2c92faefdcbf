"""A user of httpx-sse who comes back with the last id: prints the seq of every record."""

from __future__ import annotations

import contextlib
import sys
import time

import httpx
from httpx_sse import connect_sse


def main(url: str) -> None:
    last_id = ""
    with httpx.Client(timeout=httpx.Timeout(5, read=None)) as client:
        while True:
            headers = {"Last-Event-ID": last_id} if last_id else {}
            with (
                contextlib.suppress(httpx.TransportError),
                connect_sse(client, "GET", url, headers=headers) as source,
            ):
                source.response.raise_for_status()
                for event in source.iter_sse():
                    if event.event == "record":
                        for record in event.json()["records"]:
                            print(record["$seq"], flush=True)
                    last_id = event.id
            time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1])
