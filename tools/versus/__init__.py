"""Measuring this broker beside another: Apache Kafka, an earlier commit, or itself as it grows."""
