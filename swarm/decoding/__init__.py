"""Floor 1: from logits to tokens and text: uniforms, sampling, histories, stop rules. Pure: numpy only."""
