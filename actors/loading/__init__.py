"""Getting a model into memory: Hugging Face checkpoints, the built-in model, tokenizers, DeepSpeed shards.

`builtin` turns the GGUF file of an installed package into a checkpoint directory, once; `checkpoint`
finds, checks and loads a model; `tokenizer` loads and compares tokenizers; `sharded` cuts a model over
tensor-parallel ranks.
"""
