"""What a user can ask for: frozen records, one per concern. Flags and docs are generated from them."""
