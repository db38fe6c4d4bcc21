"""`bench chaos`: faults in a running service under load, whether it keeps its promises, and how soon it recovers."""
