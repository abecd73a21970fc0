"""Lossless speculative decoding: laws (sampling), the accept rule (verification), where to stop, and the loop (engine)."""
