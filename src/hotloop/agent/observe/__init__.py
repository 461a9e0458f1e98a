"""What is recorded inside the training process: phases, samples, memory; survives kill -9."""
