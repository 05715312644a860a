"""From a model's name to its facts and files; no torch."""
