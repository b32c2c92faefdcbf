"""The `topics` command. Each command is a module with `register(app)`, loaded when it is used."""
