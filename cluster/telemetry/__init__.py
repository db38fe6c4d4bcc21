"""What the service shows of itself: metrics (Prometheus, OTLP, Ray) and traces (OTLP).

Metrics are counted where things happen, in plain classes, and read when somebody asks: a round costs nothing for them.
Traces follow sampled requests only: those run over leases that draw spans, all others over the plain ones.
"""
