"""What hotloop's own process samples of the machine while a training runs: its devices and its cores."""
