"""Tests of the front: intake, collector, service, `LLM`."""
