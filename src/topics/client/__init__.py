"""The client of a server: everything `/v0` offers, blocking and for asyncio, with the same names.

A call is described once, as a `Request` that knows its answer's type (`request`, `log_calls`,
`reader_calls`, `stage_calls`, `queue_calls`, `kv_calls`), and `methods` makes it a method of both
clients; what comes back is in `values`, and `paging` goes through lists. `kv` has buckets as
objects, `kv_follow` their replicas.
Streams are described in `stream_calls` and read by `streaming` from the events of `event_stream`,
as the values of `stream_values`; `sync_stream` is for callers that block. A WebSocket is
`web_socket` (`sync_socket`) with the commands of `socket_commands`.
`client` and `async_client` send descriptions through a `transport`, or over plain connections
(`direct`, `async_direct`, whose answers are `incoming`), and `retries` says what may be repeated.
`options` are the settings of both. `embedded` asks a server without a door, in this process;
nothing else here knows engine or server.

A follower's places are in `following`, fed by a stream; `follow` drives it with asyncio,
`sync_follow` for callers that block. `worker` handles the jobs of a queue; `producer`
sends what an `outbox` gathers.
"""
