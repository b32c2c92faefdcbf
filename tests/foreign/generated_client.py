"""Uses the client that openapi-python-client made of the document: runs in its environment."""

from __future__ import annotations

import sys

from topics_api import Client
from topics_api.api.queues import ack_jobs, claim_jobs
from topics_api.api.records import diff, write_records
from topics_api.api.topics import get_topic, put_topic
from topics_api.models import (
    AckBody,
    ClaimBody,
    ConfigInput,
    ConfigInputType,
    DiffBody,
    RecordToWrite,
    RecordToWriteMetaType0,
    WriteBody,
)


def main(url: str) -> None:
    client = Client(base_url=url)
    meta = RecordToWriteMetaType0.from_dict({"source": "test"})
    records = [RecordToWrite(data={"n": n}, tag="t", meta=meta) for n in range(3)]
    written = write_records.sync("orders", client=client, body=WriteBody(records=records))
    assert (written.first_seq, written.seqs) == (1, [1, 2, 3])
    page = diff.sync("orders", client=client, body=DiffBody(from_seq=1, include_tags=True))
    assert [record.data for record in page.records] == [{"n": 1}, {"n": 2}]
    assert [record.tag for record in page.records] == ["t", "t"]
    assert page.records[0].meta["source"] == "test"
    assert page.tombstone is None
    put_topic.sync("jobs", client=client, body=ConfigInput(type_=ConfigInputType.QUEUE))
    write_records.sync("jobs", client=client, body=WriteBody(records=[RecordToWrite(data="job")]))
    claimed = claim_jobs.sync("jobs", client=client, body=ClaimBody(node="w", max_=5))
    (job,) = claimed.claimed
    assert job.data == "job"
    done = ack_jobs.sync(
        "jobs", client=client, body=AckBody(node="w", seqs=[job.seq], lease_ids=[job.lease_id])
    )
    assert (done.acked, done.ready) == (1, 0)
    assert get_topic.sync("jobs", client=client).count == 0
    refused = get_topic.sync("nowhere", client=client)
    assert refused.error.code == "topic_not_found"
    print("done")


if __name__ == "__main__":
    main(sys.argv[1])
