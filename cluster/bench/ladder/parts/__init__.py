"""The parts of `bench ladder`: one file per section."""
