"""How messages are read and written, compiled from the classes that describe them (`protocol.codec`)."""
