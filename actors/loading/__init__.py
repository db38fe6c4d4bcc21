"""Getting a model into memory: checkpoints (plain, quantised, GGUF), the built-in model, tokenizers, shards.

`checkpoint` finds, checks and loads a model. `quantised` de-quantises at load, through `packed` (formats read here)
or `libraries` (read by their packages), and `plain` makes the model without marks. `gguf` turns a GGUF file into a
checkpoint directory, once; `builtin` finds the one in an installed package. `tokenizer` loads and compares
tokenizers; `sharded` cuts a model over tensor-parallel ranks.
"""
