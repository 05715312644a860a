"""Does what plans say; the only place where device state lives."""
