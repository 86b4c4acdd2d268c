"""The torch rooms: build a span of any family's layers, run ragged batches through it, apply embeddings and head."""
