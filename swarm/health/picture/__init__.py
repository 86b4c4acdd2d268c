"""From what is known of a model to what people see of it. Pure."""
