"""The parts of `bench serve`: each puts its load on the service and adds what it found."""
