"""Who runs in the next step: pure policy over flat arrays."""
