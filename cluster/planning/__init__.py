"""What a ladder is worth on devices that are described, not there: the coordinator over them in simulated time."""
