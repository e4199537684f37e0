"""What is to prove from the bytes that nothing was lost, doubled, reordered or altered; no command yet."""
