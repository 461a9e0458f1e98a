"""Work before a training runs: plans of memory, time and cost, data, images, launches."""
