"""How many replicas a pool should have: pure rules over what replicas and coordinators report, and Serve's policies."""
