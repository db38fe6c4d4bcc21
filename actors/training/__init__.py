"""Drafters trained from the target alone: its own text as data, its own laws as labels.

`data/` lets the target write prompts and answers; `target` runs it for training; `kind` is the contract of what can
be trained and `kinds/` has one file for each; `losses` compare laws; `trainer` is the one loop, `checkpoint` what it
can go on from; `evaluate` measures acceptance by position, `card` writes it down beside the weights.
"""
