"""The log over HTTP: a thin protocol layer, and the contract's routes above it."""
