"""`tidewal demo`: a cluster that loses a leader and a disk, and what it still holds."""
