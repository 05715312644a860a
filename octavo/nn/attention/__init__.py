"""Attention backends and the one table that chooses."""
