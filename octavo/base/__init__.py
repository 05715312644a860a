"""What every room may use: errors, logging, environment, registries and plain facts. Standard library only."""
