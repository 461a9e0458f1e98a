"""What is loaded into a training, and what reads its events: torch and the standard library alone."""
