"""Recordings, traces and processes that are looked at -> one Analysis."""
