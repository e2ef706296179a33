"""Pure mathematics on tensors, one file per measure; knows nothing of victims, channels or attacks."""
