"""A program as a user would write it, only to be read by the type checker (`make check`)."""

from __future__ import annotations

import asyncio

from topics import AsyncClient, Client, Gap, Job, OutcomeUnknown, RetryPolicy, TopicNotFound


def copy(client: Client, source: str, dest: str) -> int:
    """All records of a topic into another, by hand."""
    count, at = 0, 0
    while True:
        page = client.diff(source, from_seq=at, limit=1000, include_tags=True)
        if page.tombstone is not None:
            raise RuntimeError(f"lost {page.tombstone.gap_from} to {page.tombstone.gap_to}")
        if page.records:
            answer = client.append(
                dest,
                [{"data": record.value, "tag": record.tag or "none"} for record in page.records],
            )
            count += answer.count
        at = page.next_from_seq
        if page.caught_up:
            return count


def lags(client: Client) -> dict[str, int]:
    return {
        f"{found.topic}/{cursor.cursor}": cursor.lag
        for found in client.all_topics(prefix="tenant:")
        for cursor in client.cursors(found.topic).cursors
    }


def main() -> None:
    with Client("http://127.0.0.1:4000", retries=RetryPolicy(give_up_after_s=5)) as client:
        client.create_topic("jobs", type="queue", max_deliveries=3, dead_letter="jobs.dead")
        try:
            written = client.append("jobs", [{"data": {"n": 1}, "meta": {"trace": "a"}}])
            first: int = written.first_seq
            print(first)
        except OutcomeUnknown as error:
            print(error.code, error.detail)

        def handle(job: Job) -> None:
            print(job.seq, job.deliveries, job.value)

        done: int = client.worker("jobs", handle, concurrency=4, idle_s=1).run().done
        with client.producer() as producer:
            seq: int = producer.send("events", {"done": done}).result()
        print(seq, lags(client))


def within(directory: str) -> int:
    """The same without a server."""
    with Client.embedded(directory, max_topics=10) as client:
        return copy(client, "a", "b") + client.append("a", [{"data": None}]).last_seq


async def follow() -> None:
    async with AsyncClient() as client:
        follower = client.follow("events", "audit", cursor="me")
        try:
            async for item in follower:
                if isinstance(item, Gap):
                    print(item.reason, item.gap_from, item.gap_to)
                else:
                    print(item.topic, item.seq, item.value)
                await follower.commit()
        except TopicNotFound:
            await client.create_topic("events", ttl_ms=60_000)
        async with client.producer() as producer:
            receipt = await producer.send("events", 1)
            print(await receipt)


if __name__ == "__main__":
    main()
    asyncio.run(follow())
