"""Queues over HTTP: claims that wait, leases, and `/work` streams.

A *pass* (`passes`) is the one way by which jobs are leased: to everybody who waits for them, in one
call of the engine. A claim that can be served at once is, with the others of its turn (`turn`).
Whoever has to wait stands at the queue's `desk`, in one line with the open streams; `desks` are
those of all queues. `claims` and `work_stream` are those who stand there; `lease_routes` and
`work_routes` are how they are asked for, `shapes` what they say.
"""
