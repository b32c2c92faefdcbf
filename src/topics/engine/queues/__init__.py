"""Queues: leases over the records of a topic, and what becomes of jobs that fail.

A queue is a topic, its jobs are records; who holds which is `state.queue.Queue`, in memory.
`claims` hands out jobs, `leases` is what their holders may do with them, `dead_letters` moves a
job that was delivered too often to another topic in one step, and `origins` remembers which job a
letter was, so that a job whose letter stands in the log ends in its queue. Where leases are
durable they are frames (`ops.lease_frames`), and answered after the sync. A `handle` is a queue as
whoever hands out its jobs sees it. Queues know nothing of routers.
"""
