"""The tests, one folder per package and one per kind: contracts, sim, compat, e2e."""
