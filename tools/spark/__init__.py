"""Topics for Spark: the session with its settings, and what reads for it."""
