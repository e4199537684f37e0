"""What is kept: records and frames whose bytes outlive the process, one module for each format."""
