"""Lossless speculative decoding: the accept rule (verification), where to stop (stopping), and the loop (engine)."""
