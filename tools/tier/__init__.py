"""`tidewal tier`: what of a topic is in the cold tier."""
