"""Where to split a network: the golden partition zone."""
