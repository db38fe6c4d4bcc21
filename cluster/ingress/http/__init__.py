"""The OpenAI-compatible edge: JSON to the same protobuf request that gRPC brings, chunks to JSON and events."""
