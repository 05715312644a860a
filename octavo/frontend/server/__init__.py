"""The HTTP server: thin encoders over one internal event stream."""
