"""Floor 3: the client library: chains, sessions, generation, tokenizer. Imports no torch of its own."""
