"""Measuring: how fast the engine and the service are, against their floors and against plain transformers.

`stats` and `interleave` know no clock and no model; `engine/` measures in one process, `serve/` puts load on a
running service through gRPC; `report` and `plot` show what was found. The command line is `cluster.cli.bench`.
"""
