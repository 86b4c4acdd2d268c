"""From the view of a swarm to an open chain: whom to ask, and what is known of them."""
