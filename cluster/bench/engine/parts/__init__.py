"""The parts of `bench engine`: each measures its variants against each other and adds what it found."""
