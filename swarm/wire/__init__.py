"""The wire contract as pure functions: messages, frames, tensors on the wire, and the session state machine."""
