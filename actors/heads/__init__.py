"""Draft heads: small networks that read the target's features, and the directories they are stored in.

Plain torch, no engine: training and serving use the same modules. `format` stores and checks, `vocab` is the reduced
vocabulary, `layers` what heads are built of; one file per kind.
"""
