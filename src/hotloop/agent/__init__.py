"""The code that is loaded into a training, and the reader of its events: torch and the standard library only."""
