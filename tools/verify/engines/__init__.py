"""What runs scans and judges: processes of one machine, or Spark."""
