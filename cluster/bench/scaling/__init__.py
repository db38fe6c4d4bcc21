"""`outrider bench scaling`: both pools of a real local cluster under a load that comes and goes."""
