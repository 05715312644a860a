"""Tests of the engine process and of the way to it."""
