"""Pure mathematics on tensors, one file per measure. Nothing here knows victims, channels or attacks."""
