"""Load on a running service through real gRPC, from a process of its own, and what became of it."""
