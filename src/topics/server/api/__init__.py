"""The shape of the surface: route table, bodies, fields, errors of keys and pages, gauges.

Everything here says what is allowed on the wire; nothing here waits for anything. A `route` is one
row from which the router (`dispatch`), the authorization (`auth`) and OpenAPI derive; `call` is one
request on its way through a handler; `decoding` and `fields` are what a handler may rely on;
`shapes` and `stage_shapes` are bodies as types, `sse_frames` the bytes of a stream; `origin` is
which web pages may ask at all; `meters` count what was answered, `gauges` spell metrics.
"""
