"""What hotloop's own process samples on the machine while a training runs: its devices and its cores."""
