"""The ladder and the overlap, measured against what theory says of the same figures."""
