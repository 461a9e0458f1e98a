"""On-policy learning for vectorised pursuit environments."""
