"""Recordings -> Analysis: pure functions that say where each step went."""
