"""This machine and single parts of a training -> figures; children are started and timed here."""
