"""Recordings -> Analysis: pure functions that divide the time of each step."""
