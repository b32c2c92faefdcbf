"""Queues over HTTP: claims that wait, leases, and `/work` streams.

A claim that can be served at once is, with the others of its turn (`turn`). Whoever has to wait
stands at the queue's `desk`, in one line with the open streams; a pass of the desk divides what is
ready among them in one call of the engine. `claims` and `work_stream` are those who stand there.
"""
