"""The event loop's side: what drives the engine, and who waits for it.

One turn: what has arrived is submitted, one flush writes it, what is done is answered, then the
feeds are served. `driver` owns the engine and its threads; `delivery` turns the scheduler,
measures pressure and ticks; `writes` is the way in for every write; `parking` and `longpoll` hold
those who wait; `visitors` knows who stays for long, `event_outlet` is what every event stream does,
`access_log` is what is said of those who ask; `services` is all of it, as routes get it.
"""
