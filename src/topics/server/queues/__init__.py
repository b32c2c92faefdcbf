"""Queues over HTTP: claims that wait, leases, and `/work` streams.

A `desk` is where the workers of one queue wait; claims that need not wait share a turn of the loop.
"""
