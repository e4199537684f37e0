"""What is right and what is wrong in stores and data directories, by FORMAT.md and Kafka's formats alone."""
