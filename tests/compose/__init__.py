"""The compose file, run for real: `make compose-test`."""
