"""What crosses a room or a process: records of ints, bytes and flat arrays. No torch, no behaviour beyond validation."""
