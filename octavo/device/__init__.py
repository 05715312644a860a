"""The small door to hardware."""
