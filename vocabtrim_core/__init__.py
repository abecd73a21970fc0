"""Rank, trim, decode losslessly, and measure: the core of VocabTrim, without a user interface."""

__version__ = "0.1.0"
