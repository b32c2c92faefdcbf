"""What is in memory: topics, blocks, tags, leases, routers, and the form of a record.

Plain objects that are changed by calls and keep their own counts true. They know neither the log
nor the clock.
"""
