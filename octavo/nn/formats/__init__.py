"""How a weight is stored and multiplied."""
