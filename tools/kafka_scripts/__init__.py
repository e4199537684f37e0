"""What set-ups written for Kafka's images call inside the container, under Kafka's names and options."""
