"""Traces -> timelines: partition, steps, anatomy, idle causes, launches and tables of each rank, then ranks joined."""
