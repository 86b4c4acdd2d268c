"""Phase 1: which node holds which layers. Pure functions of a cluster, one signature for every strategy."""
