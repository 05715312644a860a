"""What a model file may use: layers that declare logical shapes and roles."""
