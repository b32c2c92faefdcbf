"""A protocol library: HTTP/1.1, HTTP/2 without TLS, server-sent events, WebSocket.

It knows no topic, no engine and no storage: an application is a function from a request to an
answer (`message`), at once or later (`PENDING`). `connections` is the server, `handshakes` its door
with TLS; a connection is a stack of `ending`, `channel` (writing), `exchange` (answers in order),
`known_heads` (the short way in), `arrival` (bodies on their way, `gathered_body`) and `http1`
(`general_head` for heads that are not plain). `h2c` has one such stack for each stream
(`h2_stream`, `h2_frames`). An `event_stream` or a `websocket` takes a connection over (`takeover`);
a `pipe` is a stream's reader in this process. `hub` is what a connection knows of its server,
`turns` the end of a turn of the loop, `beside` its threads, `carrying` large answers on their way,
`giving_way` how long work leaves others the core, `sockets` what the system knows of a connection,
`errors` how a failure is told.

Bounds are everywhere: on heads, bodies, unsent bytes (`ledger`), connections, and each connection's
share of a turn (`intake`). All of them are in `limits`.
"""
