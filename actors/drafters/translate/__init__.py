"""Drafting with a model whose tokenizer is not the target's (Timor et al., 2502.05202)."""
