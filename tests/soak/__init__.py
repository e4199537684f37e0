"""A broker under mixed load for half an hour: what grows that should not, and what is lost."""
