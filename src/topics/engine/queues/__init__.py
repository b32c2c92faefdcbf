"""Queues: leases over the records of a topic, and what becomes of jobs that fail.

`claims` hands out jobs, `leases` is what their holders may do with them, `dead_letters` moves a job
that was delivered too often to another topic in one step, and `origins` remembers which job a
letter was. Queues know nothing of routers.
"""
