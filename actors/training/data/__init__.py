"""Text to train on, written by the target itself: prompts and answers (Magpie, 2406.08464), and answers to files.

`recipe` says what is asked for, `turns` knows the chat template, `writer` lets the engine write, `filters` drops what
teaches nothing, `sample` puts it together shard by shard, `files` reads prompts of users; `shards` is the format,
`batches` what the trainer gets of it, `features` stored hidden states, `vocabulary` the ids that are worth drafting.
"""
