"""Ways to run the same scans: plain processes of this machine, or a Spark cluster."""
