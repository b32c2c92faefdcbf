"""The shape of the surface: route table, bodies, fields, errors of keys and pages, gauges.

Everything here says what is allowed on the wire; nothing here waits for anything.
"""
