"""`tidewal verify`: proof from the bytes that nothing was lost, doubled, reordered or altered."""
