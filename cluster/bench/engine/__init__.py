"""Measuring the engine in one process (and in spawned ranks): steps, decoding, speculation, accuracy."""
