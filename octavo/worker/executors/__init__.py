"""How an engine reaches its workers."""
