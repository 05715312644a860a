"""From text to token ids and back, and the HTTP face."""
