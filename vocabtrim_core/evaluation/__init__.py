"""Measuring: what decoding cost and gained on this machine."""
