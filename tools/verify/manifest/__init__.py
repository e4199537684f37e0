"""What a producer sent and what became of it, written beside it for a verification to read."""
