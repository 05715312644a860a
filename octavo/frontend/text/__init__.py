"""Tokenizer, detokenizer, chat templates, stop strings."""
