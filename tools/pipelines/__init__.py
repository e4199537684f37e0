"""What carries topics elsewhere: `tidewal export` to Parquet, `tidewal replay` to another broker or topic."""
