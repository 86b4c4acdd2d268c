"""From two computations of the same rows to a verdict: what is compared, how, and what it means."""
