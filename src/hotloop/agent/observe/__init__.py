"""The recording inside the training process: phases, samples, memory; it survives kill -9."""
