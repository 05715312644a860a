"""Mesh, placement, collectives."""
