"""The HTTP side: routes, states encoded once, the stream of changes, Prometheus."""
