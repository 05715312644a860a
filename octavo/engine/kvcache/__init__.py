"""Host side of the cache: which page belongs to whom. Ints only; moving bytes is the workers' business."""
