"""A protocol library: HTTP/1.1, HTTP/2 without TLS, server-sent events, WebSocket.

It knows no topic, no engine and no storage: an application is a function from a request to an
answer, at once or later (`PENDING`). `connections` is the server; a connection is a stack of
`channel` (writing, the orderly end), `exchange` (answers in order), `known_heads` (the short way
in), `arrival` (bodies on their way) and `http1`; `h2c` has one such stack for each stream. An
`event_stream` or a `websocket` takes a connection over. `turns` is the end of a turn of the loop.

Bounds are everywhere: on heads, bodies, unsent bytes (`ledger`), connections, and each connection's
share of a turn (`intake`). All of them are in `limits`.
"""
