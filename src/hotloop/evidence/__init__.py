"""Recordings, traces and running processes -> one Analysis."""
