"""Files -> columns: the recordings of hotloop's own agent."""
