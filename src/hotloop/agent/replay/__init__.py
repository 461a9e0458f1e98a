"""Events of a training -> rows and facts, in hotloop's own process."""
