"""Floor 1: what can be proven about who computed what. Pure: decisions and bytes, no clock, socket or randomness."""
